"""What a cached prompt costs: its step beside a decode step of the same length, and the host's part of 64 admissions.

    python -m benchmarks.engine.cached_prompts [--lengths 768,8000]

SmolLM2 in bfloat16 on this CPU. Each prompt is computed once; then the step that admits it again takes turns with steps
that decode one token behind as many. The host's part is the planning and the bookkeeping of one step that admits 64
cached prompts of 768 tokens, whose hashes the server has made. Prints a table and one JSON line.
"""

import argparse
import random
import statistics
import time

from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_hashes import prompt_hashes
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.cache import Group, KvCache
from bakeoff.reference_engine.offline import LLM
from benchmarks.bars import Bars, model_argument

TURNS, SIZE, AT_ONCE, LENGTH = 15, 16, 64, 768


def steps_s(llm: LLM, prompt: list[int]) -> tuple[float, float]:
    """Medians of the step that admits a cached prompt, and of a step that decodes one token behind it."""
    engine, admitted, decoded = llm.engine, list[float](), list[float]()
    for turn in range(TURNS + 1):
        request = Request(str(turn), prompt, SamplingParams(max_tokens=4, temperature=0.0))
        request.block_hashes = prompt_hashes(prompt, SIZE, None)
        engine.add(request)
        times: list[float] = []
        while engine.has_work:
            began = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - began)
        if turn:  # the first one computes the prompt
            admitted.append(times[0])
            decoded += times[1:]
    return statistics.median(admitted), statistics.median(decoded)


def admission_s() -> float:
    """Seconds of the host's work for `AT_ONCE` cached prompts that are admitted in one step."""
    rng, cache = random.Random(0), KvCache([Group(BlockPool(2 * AT_ONCE * LENGTH // SIZE, SIZE))], prefix_caching=True)
    prompts = [[rng.randrange(49_152) for _ in range(LENGTH)] for _ in range(AT_ONCE)]

    def requests(turn: int) -> list[Request]:
        made = [Request(f"{turn}-{n}", prompt, SamplingParams(max_tokens=1)) for n, prompt in enumerate(prompts)]
        for request in made:
            request.block_hashes = prompt_hashes(request.token_ids, SIZE, None)
        return made

    for request in requests(0):
        cache.add(request)
        cache.make_writable(request, LENGTH, BlockCopies())
        request.num_computed = request.num_settled = LENGTH
        cache.free(request)
    times: list[float] = []
    for turn in range(1, TURNS):
        asked = requests(turn)
        began = time.perf_counter()
        copies = BlockCopies()
        for request in asked:
            cache.add(request)
        hits = [cache.lookup(request) for request in asked]
        for request, hit in zip(asked, hits, strict=True):
            cache.need_to_admit(request, hit, LENGTH)
            cache.attach_prefix(request, hit)
        for request in asked:
            cache.make_writable(request, LENGTH, copies)
        times.append(time.perf_counter() - began)
        for request in asked:
            request.num_computed = request.num_settled = LENGTH
            cache.free(request)
    return statistics.median(times)


def main() -> None:
    """Measures every length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--lengths", default="768,8000", help="tokens of the prompts")
    options = parser.parse_args()
    llm, rng, bars = LLM(options.model, dtype="bfloat16", num_blocks=600, max_num_seqs=4), random.Random(1), Bars()
    for length in map(int, options.lengths.split(",")):
        admitted, decoded = steps_s(llm, [rng.randrange(1000, 40_000) for _ in range(length)])
        print(f"{length} tokens: cached prompt {admitted * 1e3:.1f} ms, decode step {decoded * 1e3:.1f} ms", flush=True)
        bars.add(f"cached_prompt_of_{length}_over_decode", admitted / decoded, "<=", 1.2)
    host_s = admission_s()
    print(
        f"{AT_ONCE} cached prompts of {LENGTH}: {host_s * 1e3:.2f} ms of the host, {host_s / AT_ONCE * 1e6:.1f} us each"
    )
    bars.add("admission_of_64_ms", host_s * 1e3, "<=", 3)
    bars.add("admission_us", host_s / AT_ONCE * 1e6, "<=", 20)
    bars.finish()


if __name__ == "__main__":
    main()
