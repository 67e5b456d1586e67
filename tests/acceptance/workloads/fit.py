"""A preset that is fitted to a real trace draws traffic with its rate, its CV of the gaps and its lengths.

The bars are for the conversation part of the Azure LLM inference trace of 2023, which must be in ``--data``. The fits
of other traces in that folder are printed without a bar: code completion (bursts and silences), Mooncake's
conversations (whose sessions are unknown) and sessions of Claude Code (no clock, and contexts that are compacted).
"""

import argparse
import sys
import time
from pathlib import Path

from bakeoff.workloads import Replay, Seed
from bakeoff.workloads.fitting import Fit, fit
from bakeoff.workloads.presets.preset import preset_from
from bakeoff.workloads.presets.toml import preset_toml
from benchmarks.bars import Bars

CONVERSATION = "azure-llm-2023/AzureLLMInferenceTrace_conv.*csv*"
OTHERS = {
    "azure code": "azure-llm-2023/AzureLLMInferenceTrace_code.*csv*",
    "mooncake conversation": "mooncake-fast25/conversation_trace.jsonl*",
    "claude code": "claude-code-sessions/requests_flat.csv*",
}
FIGURES = ("rate_per_s", "gap_cv", "input_mean", "input_p90", "output_mean", "output_p90", "input_per_output")
GOAL = 0.18


def first_match(data: Path, pattern: str) -> Path | None:
    return next(iter(sorted(data.glob(pattern))), None)


def fitted(name: str, path: Path) -> Fit:
    started = time.monotonic()
    result = fit(Replay(str(path)), Seed.of("1"), name)
    wall_s = time.monotonic() - started
    assert preset_from(preset_toml(result.preset), name) == result.preset
    print(f"\n{name}: {result.requests} requests in {result.sessions} sessions, {wall_s:.1f} s; {result.arrivals}")
    for figure in result.figures:
        print(
            f"  {figure.name:<17} trace {figure.trace:>10.4g}  preset {figure.preset:>10.4g}  {figure.difference:+.1%}"
        )
    print(f"  notes: {'; '.join(result.notes) or 'none'}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    figures = {figure.name: figure for figure in result.figures}
    for name in FIGURES:
        bars.add(f"fit_{name}_off", abs(figures[name].difference), "<=", GOAL)
    bars.finish()


if __name__ == "__main__":
    main()
