"""Admission under memory pressure: what headroom for running requests saves, in recomputed tokens and in time.

A runner that computes nothing serves requests that need more KV blocks than there are. Each workload runs without
headroom, so that waiting requests take the last free blocks, and with the engine's default headroom. `recomputed` is
the share of tokens that are computed more than once. `ms` is a model of time: 4 ms a step (a decode of an 8B model on
one H200), 20 µs a token, and 80 µs for each block that is copied between device and host. Counting steps alone would
favour preemption, because it leaves out the cost of tokens and copies.
"""

import argparse
import dataclasses
import random
from collections.abc import Callable

from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.core.scheduling_rules import PreemptionName, Rules
from bakeoff.reference_engine.engine.runner import Collected
from bakeoff.reference_engine.engine.step import Engine
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.cache import Group, KvCache
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.scheduling.scheduler import Scheduler
from bakeoff.reference_engine.scheduling.step import Step
from benchmarks.bars import Bars

REQUESTS, SEATS, STEP_TOKENS, LONGEST, BLOCK = 300, 64, 512, 2048, 16
STEP_MS, TOKEN_MS, COPY_MS = 4.0, 0.02, 0.08
VOCABULARY = 1000


class CountingRunner:
    """A runner that always samples the same token, and counts tokens and block copies."""

    def __init__(self) -> None:
        self.furthest: dict[str, int] = {}
        self.tokens = self.recomputed = self.copies = 0

    def launch(self, step: Step, copies: BlockCopies) -> Collected:
        """See `Runner.launch`."""
        self.copies += len(copies.to_host) + len(copies.to_device)
        for chunk in step.chunks:
            furthest = self.furthest.get(chunk.request.request_id, 0)
            self.tokens += chunk.length
            self.recomputed += max(0, min(furthest, chunk.end) - chunk.start)
            self.furthest[chunk.request.request_id] = max(furthest, chunk.end)
        return Collected([(SampledToken(1),) for chunk in step.chunks if chunk.is_sampled])


def short(rng: random.Random) -> tuple[list[int], int]:
    """Short prompts with longer answers."""
    return _tokens(rng, rng.randint(16, 64)), rng.randint(16, 256)


def chat(rng: random.Random) -> tuple[list[int], int]:
    """Log-normal lengths like a chat service's."""
    lengths = [min(LONGEST // 2, max(1, round(median * rng.lognormvariate(0, 0.9)))) for median in (400, 150)]
    return _tokens(rng, lengths[0]), lengths[1]


def mixed(rng: random.Random) -> tuple[list[int], int]:
    """Short prompts with long answers, and long prompts with short ones."""
    if rng.random() < 0.7:
        return _tokens(rng, rng.randint(16, 64)), rng.randint(64, 512)
    return _tokens(rng, rng.randint(500, 1000)), rng.randint(16, 128)


def shared(rng: random.Random) -> tuple[list[int], int]:
    """One of eight prefixes of 512 tokens, then tokens of its own."""
    return [rng.randrange(8)] * 512 + _tokens(rng, rng.randint(16, 128)), rng.randint(16, 256)


WORKLOADS: dict[str, tuple[Callable[[random.Random], tuple[list[int], int]], int]] = {
    "short": (short, 200), "chat": (chat, 800), "mixed": (mixed, 400), "shared prefix": (shared, 500),
}  # fmt: skip
"""By name: the function that draws a prompt and an output length, and the number of KV blocks."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Figures of one run; `recomputed` is a share of the tokens that had to be computed."""

    steps: int
    preemptions: int
    recomputed: float
    ms: float


def simulate(workload: str, *, caching: bool, preemption: PreemptionName, headroom_tokens: int) -> Result:
    """Serve the workload; all its requests wait from the start."""
    rng = random.Random(3)
    draw, num_blocks = WORKLOADS[workload]
    host = BlockPool(num_blocks // 2, BLOCK) if preemption == "swap" else None
    cache = KvCache([Group(BlockPool(num_blocks, BLOCK), host=host)], prefix_caching=caching)
    rules = Rules(
        max_num_seqs=SEATS,
        max_num_batched_tokens=STEP_TOKENS,
        preemption=preemption,
        headroom_tokens=headroom_tokens,
    )
    runner = CountingRunner()
    engine = Engine(Scheduler(cache, rules), runner, Limits(LONGEST, num_blocks, BLOCK, VOCABULARY))
    for number in range(REQUESTS):
        prompt, output = draw(rng)
        engine.add(Request(str(number), prompt, SamplingParams(max_tokens=output, temperature=0.0)))
    steps = preemptions = 0
    while engine.has_work:
        preemptions += engine.step().preemptions
        steps += 1
    needed = sum(runner.furthest.values())
    ms = steps * STEP_MS + runner.tokens * TOKEN_MS + runner.copies * COPY_MS
    return Result(steps, preemptions, runner.recomputed / needed, ms)


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(8, VOCABULARY) for _ in range(count)]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    bars = Bars()
    default = Rules(max_num_seqs=SEATS, max_num_batched_tokens=STEP_TOKENS).headroom_tokens
    columns = ("recomputed", "preempt", "steps", "ms")
    print(f"{'workload':<15}{'cache':<7}{'preemption':<11}" + "".join(f"{name:>19}" for name in columns))
    times, steps, recomputed = [0.0], [0.0], [0.0]
    for workload in WORKLOADS:
        for caching in (False, True):
            for preemption in ("recompute", "swap"):
                baseline, with_headroom = (
                    simulate(workload, caching=caching, preemption=preemption, headroom_tokens=tokens)
                    for tokens in (0, default)
                )
                pairs = (f"{baseline.recomputed:.3f} -> {with_headroom.recomputed:.3f}",
                         f"{baseline.preemptions} -> {with_headroom.preemptions}",
                         f"{baseline.steps} -> {with_headroom.steps}",
                         f"{baseline.ms:.0f} -> {with_headroom.ms:.0f}")  # fmt: skip
                print(
                    f"{workload:<15}{'on' if caching else 'off':<7}{preemption:<11}"
                    + "".join(f"{p:>19}" for p in pairs)
                )
                times.append(with_headroom.ms / baseline.ms)
                steps.append(with_headroom.steps / baseline.steps)
                if preemption == "recompute":
                    recomputed.append(with_headroom.recomputed / baseline.recomputed)
    bars.add("time_ratio_worst", max(times), "<=", 1.01)
    bars.add("steps_ratio_worst", max(steps), "<=", 1.04)
    bars.add("recomputed_ratio_worst", max(recomputed), "<=", 0.7)
    bars.finish()


if __name__ == "__main__":
    main()
