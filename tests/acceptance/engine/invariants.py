"""Random operations on the scheduler and the KV cache; every page table is audited after every step.

Requests arrive, fork, search beams, are cancelled, preempted, swapped and evicted, under every policy, with and
without windows, prefix cache and host memory; see tests/reference_engine/lives.py. A life is one such random sequence.
It fails if a block leaks, has two owners or dangles, if the contents of a block are wrong, or if a request does not
end.
"""

import argparse
import time
from collections import Counter

from benchmarks.bars import Bars
from tests.reference_engine.lives import random_life

STEPS = 100_000
_KINDS = (
    "forked", "cancelled", "preemptions", "swaps", "evicted", "cached", "finished", "released", "refused", "searched",
    "settled", "robbed",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--first-seed", type=int, default=1_000)
    options = parser.parse_args()
    counts, lives, failed, seed = Counter[str](), 0, 0, options.first_seed
    began = time.perf_counter()
    while counts["steps"] < options.steps:
        try:
            counts += random_life(seed, 200)
        except Exception as error:  # noqa: BLE001  (every failure is counted, and can be reproduced by its seed)
            print(f"seed {seed}: {type(error).__name__}: {error}")
            failed += 1
            counts["steps"] += 1
        lives, seed = lives + 1, seed + 1
    print(f"{lives} lives, {counts['steps']} steps in {time.perf_counter() - began:.0f} s")
    print("  ".join(f"{kind} {counts[kind]}" for kind in _KINDS))
    bars = Bars()
    bars.add("steps", counts["steps"], ">=", options.steps)
    bars.add("lives_that_failed", failed, "==", 0)
    bars.add("kinds_of_events_below_100", sum(counts[kind] < 100 for kind in _KINDS), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
