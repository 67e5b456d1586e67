"""Every claim has a verdict within an hour on two cores, and a further call tests nothing again.

    python -m benchmarks.claims.here [--out FOLDER]

The first call has a budget of a minute, the second tests the rest, and the third has only to read results. With --out,
results stay, and results of earlier calls are not measured again.
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.bars import Bars
from benchmarks.claims.interpreter.catalogue import load_catalogue
from benchmarks.claims.interpreter.records import read_records
from benchmarks.claims.interpreter.run import claims

_FIRST_MIN = 1.0
_GOAL_MIN = 60.0
_AGAIN_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        judge(options.out or Path(folder))


def judge(out: Path) -> None:
    """Make three calls in a row, and check their results."""
    bars, names, began = Bars(), [entry.name for entry in load_catalogue()], time.monotonic()
    claims(out=out, budget_min=_FIRST_MIN, progress=print)
    claims(out=out, progress=print)
    bars.add("minutes", (time.monotonic() - began) / 60, "<=", _GOAL_MIN)
    bars.add("claims_without_a_verdict", sum(not read_records(out, name) for name in names), "==", 0)
    counts = {name: len(read_records(out, name)) for name in names}
    began = time.monotonic()
    again = claims(out=out)
    bars.add("seconds_of_a_further_call", time.monotonic() - began, "<=", _AGAIN_S)
    bars.add("claims_incomplete", sum(not record.complete for record in again.records), "==", 0)
    bars.add("claims_tested_again", sum(len(read_records(out, name)) > counts[name] for name in names), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
