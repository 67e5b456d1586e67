"""A preset made of a real trace draws traffic like it. Run by ``make bench-workloads``.

The bars are for the conversation part of the Azure LLM inference trace of 2023, which must lie in ``--data``. What
other traces give is printed where they lie there too, without a bar: code completion (bursts and silences), Mooncake's
conversations (whose sessions are unknown) and sessions of Claude Code (no clock, and contexts that are compacted).
"""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.bars import Bars
from workloads import Replay, Seed
from workloads.fitting import Fit, fit, preset_toml
from workloads.presets.preset import preset_from

CONVERSATION = "azure-llm-2023/AzureLLMInferenceTrace_conv.*csv*"
OTHERS = {
    "azure code": "azure-llm-2023/AzureLLMInferenceTrace_code.*csv*",
    "mooncake conversation": "mooncake-fast25/conversation_trace.jsonl*",
    "claude code": "claude-code-sessions/requests_flat.csv*",
}
KS_GOAL, GAPS_GOAL = 0.03, 0.05
FIGURES = {"gap_cv": 0.26, "dispersion_10s": 0.26, "input_mean": 0.18, "output_mean": 0.18, "input_per_output": 0.18}


def found(data: Path, pattern: str) -> Path | None:
    return next(iter(sorted(data.glob(pattern))), None)


def fitted(name: str, path: Path) -> Fit:
    started = time.monotonic()
    made = fit(Replay(str(path)), Seed.of("1"), name)
    wall_s = time.monotonic() - started
    assert preset_from(preset_toml(made.preset), name) == made.preset
    print(f"\n{name}: {made.requests} requests in {made.sessions} sessions, {wall_s:.1f} s")
    print(f"  {made.arrivals.reason}")
    for one in made.arrivals.candidates:
        print(f"  {one.arrival.process:<8} gaps KS {one.gap_ks:.3f}, score {one.score:.2f}")
    for one in made.goodness.distances:
        print(f"  KS of {one.name:<12} {one.ks:.3f}")
    for one in made.goodness.figures:
        print(f"  {one.name:<17} trace {one.trace:>10.4g}  preset {one.preset:>10.4g}  {one.difference:+.1%}")
    print(f"  notes: {'; '.join(made.notes) or 'none'}")
    print(f"  poor: {'; '.join(made.goodness.complaints) or 'nothing'}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the traces")
    data = parser.parse_args().data
    path = found(data, CONVERSATION)
    if path is None:
        print(f"{data / CONVERSATION} is not there: give the folder of the traces with --data", file=sys.stderr)
        sys.exit(2)
    made = fitted("azure conversation", path)
    for name, pattern in OTHERS.items():
        if other := found(data, pattern):
            fitted(name, other)
    print()
    bars = Bars()
    distances = {one.name: one.ks for one in made.goodness.distances}
    for name, goal in {"input": KS_GOAL, "output": KS_GOAL, "gaps_s": GAPS_GOAL}.items():
        bars.add(f"fit_ks_{name}", distances[name], "<=", goal)
    figures = {one.name: one for one in made.goodness.figures}
    for name, tolerance in FIGURES.items():
        bars.add(f"fit_{name}_off", abs(figures[name].difference), "<=", tolerance)
    bars.add("fit_gap_cv_low", figures["gap_cv"].preset, ">=", 1.0)
    bars.add("fit_gap_cv_high", figures["gap_cv"].preset, "<=", 1.2)
    bars.finish()


if __name__ == "__main__":
    main()
