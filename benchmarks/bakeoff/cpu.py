"""Every system that this CPU can run, with the same weights and traffic. Run by ``make bench-bakeoff``.

Runs ``cpu.toml``, which takes an hour on two cores, or reads an existing run (``--run``), and checks that every engine
has valid trials at every load. With ``--publish FOLDER`` the run's page and data are written there, and the run updates
the table in docs/results/index.md.
"""

import argparse
from pathlib import Path

from bakeoff import results
from benchmarks.bars import Bars
from benchmarks.experiments import measured
from docs.publishing import into_page, publish

EXPERIMENT = Path(__file__).with_name("cpu.toml")
ROOT = EXPERIMENT.parents[2]
ENGINES, LOADS, REPEATS = 5, 4, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="an existing run")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the run")
    parser.add_argument("--publish", type=Path, help="folder for the page and data, such as docs/results/cpu-bakeoff")
    options = parser.parse_args()
    run = results.load(options.run or measured(EXPERIMENT, options.out, resume=True))
    if options.publish:
        publish(run, EXPERIMENT, options.publish, "make bench-bakeoff")
        into_page(ROOT / "docs/results/index.md", run)
    for cell in run.cells:
        rate = cell.intervals.get("output_tokens_per_s")
        print(f"{cell.load:<16} {cell.engine:<24} {cell.valid}/{cell.planned}  {rate.centre if rate else 0:8.1f} tok/s")
    bars = Bars()
    bars.add("engines", len({cell.engine for cell in run.cells}), ">=", ENGINES)
    bars.add("loads", len({cell.load for cell in run.cells}), ">=", LOADS)
    bars.add("repeats", min(cell.planned for cell in run.cells), ">=", REPEATS)
    bars.add("cells_without_an_interval", sum(cell.valid < 2 for cell in run.cells), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
