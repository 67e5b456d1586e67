"""Bar 3, its second part: what paging, continuous batching, chunked prefill and the prefix cache bring, one by one.

Runs `ladder.toml` through the harness, twenty minutes on two cores, or takes a run that exists (`--run`). A rung
is the reference engine with one more idea switched on, under the same traffic: users who never pause. Its gain is its
output rate over that of the rung before, rungs interleaved: ratio and 95 % interval.

What others say: Orca, whose iteration-level scheduling rung 3 is, has 36.9 times the throughput of FasterTransformer
at equal latency (GPT-3 175B; Yu et al., OSDI '22); vLLM, which adds paging, 2 to 4 times that of Orca and of
FasterTransformer (arXiv:2309.06180); SARATHI's chunks 1.33 times end to end with LLaMA-13B on an A6000 and 1.25 times
with LLaMA-33B on an A100 (arXiv:2308.16369). Paging pays where memory is scarce, which it is not here; chunks pay in
the gaps between tokens, which is why those are shown too.
"""

import argparse
import itertools
import re
import sys
import tempfile
from pathlib import Path

import results
from benchmarks.bars import Bars
from benchmarks.experiments import measured
from results.metrics import CATALOGUE
from results.run import Cell, Run, by_repeat
from results.statistics import Interval, compare_runs
from results.text.format import interval_text, ratio_text

EXPERIMENT = Path(__file__).with_suffix(".toml")
RATE, SHOWN = "output_tokens_per_s", ("output_tokens_per_s", "ttft_p50_s", "itl_p50_s", "itl_p99_s")
GOAL, LEAST_REPEATS = 2.0, 5


def changed(folder: Path, repeats: int, duration_s: float) -> Path:
    """A copy of the experiment that is longer or shorter."""
    text = EXPERIMENT.read_text(encoding="utf-8")
    text = re.sub(r"^repeats = .*$", f"repeats = {repeats}", text, flags=re.MULTILINE)
    text = re.sub(r"^duration_s = .*$", f"duration_s = {duration_s}", text, flags=re.MULTILINE)
    copy = folder / EXPERIMENT.name
    copy.write_text(text, encoding="utf-8")
    return copy


def gain(run: Run, below: Cell, above: Cell) -> Interval | None:
    """One rung's output rate over another's."""
    rates = [
        by_repeat((trial for trial in run.finished if trial.record.engine == cell.engine), cell.load, RATE)
        for cell in (below, above)
    ]
    return compare_runs(CATALOGUE[RATE], above.load, *rates, interleaved=True, alpha=0.05).ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run that exists, to be judged without measuring")
    parser.add_argument("--repeats", type=int, default=LEAST_REPEATS, help="of each rung (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=30, help="seconds of each trial (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where to (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = results.load(
            options.run or measured(changed(Path(folder), options.repeats, options.duration), options.out)
        )
    rungs = run.cells
    if [cell.engine[0] for cell in rungs] != [*"12345"]:
        sys.exit(f"{run.path} is no run of {EXPERIMENT.name}; give one, or leave out --run")
    for cell in rungs:
        print(f"{cell.engine}: {cell.valid} of {cell.planned} trials are valid")
        for name in SHOWN:
            print(f"  {name:<22}{interval_text(CATALOGUE[name], cell.intervals.get(name))}")
    print(f"\n{'rung':<24}{'over the one before':>28}{'over the first':>28}")
    for below, above in itertools.pairwise(rungs):
        gains = (ratio_text(gain(run, other, above)) for other in (below, rungs[0]))
        print(f"{above.engine:<24}" + "".join(f"{text:>28}" for text in gains))
    found = gain(run, rungs[1], rungs[2])
    bars = Bars()
    bars.add("continuous_over_static", found.centre if found else 0, ">=", GOAL)
    bars.add("valid_repeats_of_each_rung", min(cell.valid for cell in rungs), ">=", LEAST_REPEATS)
    bars.finish()


if __name__ == "__main__":
    main()
