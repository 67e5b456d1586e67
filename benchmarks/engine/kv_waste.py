"""The unfilled share of the KV blocks that requests hold, paged and contiguous. Needs no model.

Requests with log-normal lengths like a chat service's are served 16 at a time by a runner that computes nothing. Held
and filled token slots are summed over all steps, as ``/metrics`` exports them. PagedAttention's paper (SOSP'23, fig. 2)
found 20 to 38 % filled in systems that reserve memory in advance, and 96 % with paging.
"""

import argparse
import random

from bakeoff.reference_engine.ablations.contiguous import RunPool
from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.core.scheduling_rules import Rules
from bakeoff.reference_engine.engine.runner import Collected
from bakeoff.reference_engine.engine.step import Engine
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.cache import Group, KvCache
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.scheduling.scheduler import Scheduler
from bakeoff.reference_engine.scheduling.step import Step
from benchmarks.bars import Bars

REQUESTS, SEATS, LONGEST, BLOCK = 400, 16, 2048, 16
MEDIAN_INPUT, MEDIAN_OUTPUT, SPREAD = 400, 150, 0.9  # tokens


class ConstantRunner:
    """A runner that computes nothing and always samples the same token."""

    def launch(self, step: Step, copies: BlockCopies) -> Collected:  # noqa: ARG002
        """See `Runner.launch`."""
        return Collected([(SampledToken(1),) for chunk in step.chunks if chunk.is_sampled])


def wasted(run: int) -> tuple[float, float, float]:
    """Shares of the token slots over all steps: reserved for later tokens, never filled, and lost between runs."""
    rng = random.Random(1)
    pool = RunPool(SEATS * LONGEST // BLOCK, BLOCK, run)
    rules = Rules(max_num_seqs=SEATS, max_num_batched_tokens=512)
    limits = Limits(LONGEST, pool.num_blocks, BLOCK, 10)
    engine = Engine(Scheduler(KvCache([Group(pool)], prefix_caching=False), rules), ConstantRunner(), limits)
    for number in range(REQUESTS):
        length = max(1, min(LONGEST // 2, round(MEDIAN_INPUT * rng.lognormvariate(0, SPREAD))))
        output = max(1, min(LONGEST - length, round(MEDIAN_OUTPUT * rng.lognormvariate(0, SPREAD))))
        engine.add(Request(str(number), [1] * length, SamplingParams(max_tokens=output, temperature=0.0)))
    held = filled = reserved = lost = 0
    while engine.has_work:
        occupancy = engine.step().occupancy
        assert occupancy is not None
        held, filled = held + occupancy.held, filled + occupancy.filled
        reserved, lost = reserved + occupancy.reserved, lost + occupancy.lost
    return reserved / held, (held - filled - reserved) / held, lost / (held + lost)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    bars = Bars()
    print(f"{'wasted':<12}{'reserved':>10}{'internal':>10}{'external':>10}")
    for name, run, sign, goal in (("paged", 1, "<=", 4), ("contiguous", LONGEST // BLOCK, ">=", 60)):
        shares = wasted(run)
        print(f"{name:<12}" + "".join(f"{share:>10.1%}" for share in shares))
        bars.add(f"{name}_waste_pct", 100 * sum(shares), sign, goal)
    bars.finish()


if __name__ == "__main__":
    main()
