"""The gain from paging, continuous batching, chunked prefill and the prefix cache, one by one.

Runs `ladder.toml` through the harness, which takes twenty minutes on two cores, or judges an existing run (`--run`). A
rung is the reference engine with one more feature enabled, under the same closed-loop traffic. Its gain is the ratio of
its output rate to that of the previous rung, with a 95 % interval; the trials of all rungs are interleaved.

Published gains: Orca, whose iteration-level scheduling is that of rung 3, has 36.9 times the throughput of
FasterTransformer at equal latency (GPT-3 175B; Yu et al., OSDI '22). vLLM, which adds paging, has 2 to 4 times that of
Orca and of FasterTransformer (arXiv:2309.06180). SARATHI's chunked prefill gains 1.33 times end to end with LLaMA-13B
on an A6000 and 1.25 times with LLaMA-33B on an A100 (arXiv:2308.16369). Paging helps where memory is scarce, which it
is not here. Chunked prefill shortens the gaps between tokens, so these are shown, too.
"""

import argparse
import itertools
import re
import sys
import tempfile
from pathlib import Path

from bakeoff import results
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.run import Run, by_repeat
from bakeoff.results.statistics import Interval, compare_runs
from bakeoff.results.statistics.comparison import Criteria
from bakeoff.results.text.format import interval_text, ratio_text
from benchmarks.bars import Bars
from benchmarks.experiments import measured

EXPERIMENT = Path(__file__).with_suffix(".toml")
RATE, SHOWN = "output_tokens_per_s", ("output_tokens_per_s", "ttft_p50_s", "itl_p50_s", "itl_p99_s")
GOAL, LEAST_REPEATS = 2.0, 5


def write_experiment(folder: Path, repeats: int, duration_s: float) -> Path:
    """Write a copy of the experiment with other repeats and another duration."""
    text = EXPERIMENT.read_text(encoding="utf-8")
    text = re.sub(r"^repeats = .*$", f"repeats = {repeats}", text, flags=re.MULTILINE)
    text = re.sub(r"^duration_s = .*$", f"duration_s = {duration_s}", text, flags=re.MULTILINE)
    copy = folder / EXPERIMENT.name
    copy.write_text(text, encoding="utf-8")
    return copy


def gain(run: Run, below: Cell, above: Cell) -> Interval | None:
    """Ratio of one rung's output rate to another's."""
    rates = [
        by_repeat((trial for trial in run.finished if trial.record.engine == cell.engine), cell.load, RATE)
        for cell in (below, above)
    ]
    return compare_runs(CATALOGUE[RATE], above.load, *rates, interleaved=True, criteria=Criteria(alpha=0.05)).ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="an existing run, to judge without measuring")
    parser.add_argument("--repeats", type=int, default=LEAST_REPEATS, help="of each rung (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=30, help="seconds of each trial (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the run (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = results.load(
            options.run or measured(write_experiment(Path(folder), options.repeats, options.duration), options.out)
        )
    rungs = run.cells
    if [cell.engine[0] for cell in rungs] != [*"12345"]:
        sys.exit(f"{run.path} is no run of {EXPERIMENT.name}; give one, or omit --run")
    for cell in rungs:
        print(f"{cell.engine}: {cell.valid} of {cell.planned} trials are valid")
        for name in SHOWN:
            print(f"  {name:<22}{interval_text(CATALOGUE[name], cell.intervals.get(name))}")
    print(f"\n{'rung':<24}{'over the previous one':>28}{'over the first':>28}")
    for below, above in itertools.pairwise(rungs):
        gains = (ratio_text(gain(run, other, above)) for other in (below, rungs[0]))
        print(f"{above.engine:<24}" + "".join(f"{text:>28}" for text in gains))
    continuous = gain(run, rungs[1], rungs[2])
    bars = Bars()
    bars.add("continuous_over_static", continuous.centre if continuous else 0, ">=", GOAL)
    bars.add("valid_repeats_of_each_rung", min(cell.valid for cell in rungs), ">=", LEAST_REPEATS)
    bars.finish()


if __name__ == "__main__":
    main()
