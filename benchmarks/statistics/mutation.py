"""Bar 7: how many small changes of ``results/metrics`` and ``results/statistics`` their own tests notice.

    python -m benchmarks.statistics.mutation [--package metrics] [--module two_sample] [--survivors]

mutmut makes the changes (:mod:`benchmarks.mutants`), of which there are about 2,900. Against each one, in a fork
(:mod:`benchmarks.forked_tests`), run the tests that reach the changed function, the fastest first, or all of them where
the change is outside of a function. It is killed when a test fails, or takes far longer than it does. A change that
survives shows a test that is missing, or code that makes no difference. Only the unit tests of the two packages count,
not those of the reports and gates that rest on them. All of it takes about an hour on two cores.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import forked_tests
from benchmarks.bars import Bars
from benchmarks.clone import ROOT
from benchmarks.mutants import Mutant, mutants

PACKAGES = ("metrics", "statistics")
TESTS = (
    "basis", "between_runs", "definitions", "energy", "latency", "percentiles", "throughput", "trial_metrics", "values",
    "bisection", "change_points", "compare_runs", "distributions", "interval", "multiplicity", "permutation", "power",
    "segments", "sequential", "two_sample", "within",
)  # fmt: skip
GOAL_PERCENT = 85


def survivors(found: Sequence[Mutant], reached: forked_tests.Reached, jobs: int) -> list[Mutant]:
    """Those that no test notices."""
    left: list[Mutant] = []
    running: dict[int, Mutant] = {}
    for mutant in found:
        if len(running) == jobs:
            left += _ended(running)
        running[forked_tests.try_change(mutant.path, mutant.source, reached.tests(mutant.path, mutant.lines))] = mutant
    while running:
        left += _ended(running)
    return sorted(left, key=lambda mutant: mutant.line)


def _ended(running: dict[int, Mutant]) -> list[Mutant]:
    """Wait for one; it, if it survived."""
    pid, status = os.wait()
    mutant = running.pop(pid)
    return [mutant] if forked_tests.survived(status) else []


def score(path: Path, reached: forked_tests.Reached, options: argparse.Namespace) -> tuple[int, int]:
    """Mutants of one module, and how many of them survive; prints its row."""
    found = mutants(path)
    as_it_is = Mutant(path, 0, None, path.read_text(encoding="utf-8"), "")
    if found and not survivors([as_it_is], reached, 1):
        sys.exit(f"mutation: the tests fail on {path} as it is")
    left = survivors(found, reached, options.jobs)
    if found:
        row(f"{path.parent.name}/{path.stem}", len(found), len(left))
    for mutant in left if options.survivors else []:
        print(f"{path}:{mutant.line}\n{mutant.change}")
    return len(found), len(left)


def row(name: str, found: int, left: int) -> None:
    print(f"{name:<28} {found:>7} {found - left:>7} {left:>9} {100 * (1 - left / found):>6.1f}%", flush=True)


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
    reached = forked_tests.survey([Path(f"tests/results/test_{name}.py") for name in TESTS], folders)
    print(f"{'module':<28} {'mutants':>7} {'killed':>7} {'survived':>9} {'score':>7}")
    bars = Bars()
    for folder in folders:
        paths = [path for path in sorted(folder.glob("*.py")) if options.module in {None, path.stem}]
        counts = [score(path, reached, options) for path in paths if options.package in {None, folder.name}]
        found, left = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        if found:
            row(folder.name, found, left)
            bars.add(f"mutation_score_{folder.name}_percent", 100 * (1 - left / found), ">=", GOAL_PERCENT)
    bars.finish()


if __name__ == "__main__":
    main()
