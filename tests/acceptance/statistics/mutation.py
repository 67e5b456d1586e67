"""How many small changes of ``results/metrics`` and ``results/statistics`` their own tests notice.

    python -m tests.acceptance.statistics.mutation [--package metrics] [--module two_sample] [--survivors]

mutmut generates about 2,900 mutants (:mod:`tests.acceptance.mutants`). For each one, a fork
(:mod:`tests.acceptance.forked_tests`) runs the tests that execute the changed function, fastest first, or all tests if
the change is outside of a function. A mutant is killed if a test fails or takes far longer than normal. A surviving
mutant shows that a test is missing, or that the code makes no difference. Only the unit tests of the two packages
count, not those of the reports and gates that use them. All mutants take about an hour on two cores.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars import Bars
from tests.acceptance import forked_tests
from tests.acceptance.clone import ROOT
from tests.acceptance.mutants import Mutant, mutants

PACKAGES = ("metrics", "statistics")
GOAL_PERCENT = 85


def survivors(candidates: Sequence[Mutant], coverage: forked_tests.LineCoverage, jobs: int) -> list[Mutant]:
    """The mutants that no test kills, by line."""
    survived: list[Mutant] = []
    running: dict[int, Mutant] = {}
    for mutant in candidates:
        if len(running) == jobs:
            survived += _wait(running)
        pid = forked_tests.try_change(mutant.path, mutant.source, coverage.tests(mutant.path, mutant.lines))
        running[pid] = mutant
    while running:
        survived += _wait(running)
    return sorted(survived, key=lambda mutant: mutant.line)


def _wait(running: dict[int, Mutant]) -> list[Mutant]:
    """Wait for any fork to end; returns its mutant if that survived."""
    pid, status = os.wait()
    mutant = running.pop(pid)
    return [mutant] if forked_tests.survived(status) else []


def score(path: Path, coverage: forked_tests.LineCoverage, options: argparse.Namespace) -> tuple[int, int]:
    """Mutants of one module, and how many of them survive; prints its row."""
    candidates = mutants(path)
    unchanged = Mutant(path, 0, None, path.read_text(encoding="utf-8"), "")
    if candidates and not survivors([unchanged], coverage, 1):
        sys.exit(f"mutation: the tests fail on {path} as it is")
    survived = survivors(candidates, coverage, options.jobs)
    if candidates:
        row(f"{path.parent.name}/{path.stem}", len(candidates), len(survived))
    for mutant in survived if options.survivors else []:
        print(f"{path}:{mutant.line}\n{mutant.change}")
    return len(candidates), len(survived)


def row(name: str, total: int, survived: int) -> None:
    killed = total - survived
    print(f"{name:<28} {total:>7} {killed:>7} {survived:>9} {100 * (1 - survived / total):>6.1f}%", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", choices=PACKAGES, help="one package alone (default: both)")
    parser.add_argument("--module", help="one module alone, such as two_sample (default: all)")
    parser.add_argument("--survivors", action="store_true", help="print the changes that no test notices")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="forks at a time (default: %(default)s)")
    options = parser.parse_args()
    os.chdir(ROOT)
    folders = [Path("results", package) for package in PACKAGES]
    forked_tests.load()
    tests = [file for folder in folders for file in sorted(Path("tests", folder).glob("test_*.py"))]
    coverage = forked_tests.survey(tests, folders)
    print(f"{'module':<28} {'mutants':>7} {'killed':>7} {'survived':>9} {'score':>7}")
    bars = Bars()
    for folder in folders:
        paths = [path for path in sorted(folder.glob("*.py")) if options.module in {None, path.stem}]
        counts = [score(path, coverage, options) for path in paths if options.package in {None, folder.name}]
        total, survived = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        if total:
            row(folder.name, total, survived)
            bars.add(f"mutation_score_{folder.name}_percent", 100 * (1 - survived / total), ">=", GOAL_PERCENT)
    bars.finish()


if __name__ == "__main__":
    main()
