"""Time that a replica needs to read a long prompt and to look it up in its prefix cache. Run by ``make bench-truth``.

No other answer is written in that time. Bars are medians of CPU time, as the server has a core of its own.
"""

import gc
import random
import statistics
import time

import msgspec

from bakeoff.harness.truth.answered import CHAT
from bakeoff.harness.truth.prefix_cache import PrefixCache
from bakeoff.harness.truth.requests import body_of
from benchmarks.bars import Bars

TOKENS, TURNS, CACHE_TOKENS, BLOCK_TOKENS = 100_000, 50, 400_000, 16
ROUNDS = 15


def conversation(rng: random.Random) -> list[dict[str, str]]:
    """A chat of about :data:`TOKENS` tokens."""
    roles = ["user", "assistant"]
    words = TOKENS // TURNS
    return [
        {"role": roles[turn % 2], "content": " ".join(f"w{rng.randrange(10_000)}" for _ in range(words))}
        for turn in range(TURNS)
    ]


def look_up_ms(cache: PrefixCache, body: bytes) -> float:
    """Milliseconds of CPU time from the bytes of a request to its hits."""
    start_s = time.thread_time()
    prompt = cache.prompt(CHAT, body_of(CHAT, body))
    pin, _ = cache.begin(prompt)
    end_s = time.thread_time()
    cache.end(prompt, pin, [])
    return 1000 * (end_s - start_s)


def main() -> None:
    rng, cache = random.Random(1), PrefixCache(CACHE_TOKENS, BLOCK_TOKENS)
    new_ms, grown_ms = [], []
    gc.disable()  # as the server does
    for _ in range(ROUNDS):
        messages = conversation(rng)
        new_ms.append(look_up_ms(cache, msgspec.json.encode({"messages": messages})))
        more = [*messages, {"role": "user", "content": " ".join(["more"] * 500)}]
        grown_ms.append(look_up_ms(cache, msgspec.json.encode({"messages": more})))
    print(f"{TOKENS:,} tokens, a full cache of {CACHE_TOKENS:,}")
    bars = Bars()
    bars.add("continued_prompt_ms", statistics.median(grown_ms), "<=", 2.0)
    bars.add("new_prompt_ms", statistics.median(new_ms), "<=", 5.0)
    bars.finish()


if __name__ == "__main__":
    main()
