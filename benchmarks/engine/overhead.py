"""Bar 6: what a decode step of 32 sequences costs outside the model.

That is everything but `forward`: scheduling, what the step's tensors are made from, the prepared attention, sampling,
the bookkeeping and the report. Medians over steps; the profile printed is Python's own.
"""

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any

from benchmarks.bars import Bars, model_argument
from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.offline import load_engine
from reference_engine.request import Request, SamplingParams

BATCH, CONTEXT, STEPS, GOAL_MS = 32, 256, 200, 0.5


def decoding(model: str) -> Engine:
    """An engine in which 32 sequences of some length decode."""
    engine = load_engine(EngineConfig(model=model, dtype="bfloat16", max_model_len=2048, max_num_seqs=BATCH))
    params = SamplingParams(max_tokens=3 * STEPS, temperature=0.0)
    for number in range(BATCH):
        engine.add(Request(str(number), [1 + (number * 31 + i) % 9_999 for i in range(CONTEXT)], params))
    seen: set[str] = set()
    while len(seen) < BATCH:
        seen |= {output.request_id for output in engine.step().outputs}
    return engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    engine = decoding(parser.parse_args().model)
    model: Any = engine._runner._executor._model  # noqa: SLF001
    forward, inside = model.forward, [0.0]

    def timed(*arguments: Any) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        answer = forward(*arguments)
        inside[0] = time.perf_counter() - began
        return answer

    model.forward = timed
    outside = []
    for _ in range(STEPS):
        began = time.perf_counter()
        report = engine.step()
        outside.append(1e3 * (time.perf_counter() - began - inside[0]))
        assert len(report.outputs) == BATCH
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(STEPS):
        engine.step()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(16)
    print(f"outside the model: median {statistics.median(outside):.3f} ms, best {min(outside):.3f} ms")
    bars = Bars()
    bars.add("step_overhead_ms", statistics.median(outside), "<=", GOAL_MS)
    bars.finish()


if __name__ == "__main__":
    main()
