"""A preset that is fitted to a real trace draws traffic like it.

The bars are for the conversation part of the Azure LLM inference trace of 2023, which must be in ``--data``. The fits
of other traces in that folder are printed without a bar: code completion (bursts and silences), Mooncake's
conversations (whose sessions are unknown) and sessions of Claude Code (no clock, and contexts that are compacted).
"""

import argparse
import sys
import time
from pathlib import Path

from bakeoff.workloads import Replay, Seed
from bakeoff.workloads.fitting import Fit, fit, preset_toml
from bakeoff.workloads.presets.preset import preset_from
from benchmarks.bars import Bars

CONVERSATION = "azure-llm-2023/AzureLLMInferenceTrace_conv.*csv*"
OTHERS = {
    "azure code": "azure-llm-2023/AzureLLMInferenceTrace_code.*csv*",
    "mooncake conversation": "mooncake-fast25/conversation_trace.jsonl*",
    "claude code": "claude-code-sessions/requests_flat.csv*",
}
KS_GOAL, GAPS_GOAL = 0.03, 0.05
FIGURES = {"gap_cv": 0.26, "dispersion_10s": 0.26, "input_mean": 0.18, "output_mean": 0.18, "input_per_output": 0.18}


def first_match(data: Path, pattern: str) -> Path | None:
    return next(iter(sorted(data.glob(pattern))), None)


def fitted(name: str, path: Path) -> Fit:
    started = time.monotonic()
    result = fit(Replay(str(path)), Seed.of("1"), name)
    wall_s = time.monotonic() - started
    assert preset_from(preset_toml(result.preset), name) == result.preset
    print(f"\n{name}: {result.requests} requests in {result.sessions} sessions, {wall_s:.1f} s")
    print(f"  {result.arrivals.reason}")
    for candidate in result.arrivals.candidates:
        print(f"  {candidate.arrival.process:<8} gaps KS {candidate.gap_ks:.3f}, score {candidate.score:.2f}")
    for distance in result.goodness.distances:
        print(f"  KS of {distance.name:<12} {distance.ks:.3f}")
    for figure in result.goodness.figures:
        print(
            f"  {figure.name:<17} trace {figure.trace:>10.4g}  preset {figure.preset:>10.4g}  {figure.difference:+.1%}"
        )
    print(f"  notes: {'; '.join(result.notes) or 'none'}")
    print(f"  poor: {'; '.join(result.goodness.complaints) or 'nothing'}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the traces")
    data = parser.parse_args().data
    path = first_match(data, CONVERSATION)
    if path is None:
        print(f"{data / CONVERSATION} is not there: give the folder of the traces with --data", file=sys.stderr)
        sys.exit(2)
    result = fitted("azure conversation", path)
    for name, pattern in OTHERS.items():
        if other := first_match(data, pattern):
            fitted(name, other)
    print()
    bars = Bars()
    distances = {distance.name: distance.ks for distance in result.goodness.distances}
    for name, goal in {"input": KS_GOAL, "output": KS_GOAL, "gaps_s": GAPS_GOAL}.items():
        bars.add(f"fit_ks_{name}", distances[name], "<=", goal)
    figures = {figure.name: figure for figure in result.goodness.figures}
    for name, tolerance in FIGURES.items():
        bars.add(f"fit_{name}_off", abs(figures[name].difference), "<=", tolerance)
    bars.add("fit_gap_cv_low", figures["gap_cv"].preset, ">=", 1.0)
    bars.add("fit_gap_cv_high", figures["gap_cv"].preset, "<=", 1.2)
    bars.finish()


if __name__ == "__main__":
    main()
