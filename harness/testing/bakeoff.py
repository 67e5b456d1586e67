"""The object that the fixture returns: measures runs for one test."""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast

from bakeoff.harness.cli.commands.bench import bench
from bakeoff.harness.cli.commands.run import run
from bakeoff.harness.conduct.run import why_invalid
from bakeoff.harness.testing.measured import Measured
from bakeoff.harness.testing.one_line import OneLine
from bakeoff.results import Run
from bakeoff.results.metrics.objectives import objectives

if TYPE_CHECKING:
    from bakeoff.harness.cli.options import Source

_P = ParamSpec("_P")


def _with_parameters_of(_: Callable[_P, Run]) -> Callable[[Callable[..., Measured]], "_Method[_P]"]:
    """Type a method that passes all parameters of a function on."""
    return lambda method: cast("_Method[_P]", method)


class _Method(Protocol[_P]):
    def __call__(self, *arguments: _P.args, **options: _P.kwargs) -> Measured: ...


class Bakeoff:
    """Measures runs for one test; an INVALID run fails the test.

    Args:
        name: of the test; names the runs of :meth:`bench`.
        title: of its runs; the second and later ones get a number.
        out: parent of the run folders.
        slo: objectives asserted on every run; None for none.
        baseline: default of :meth:`~bakeoff.harness.testing.measured.Measured.assert_no_regression`; several runs are
            pooled.
        runs: list that every run is appended to, INVALID ones included.
    """

    def __init__(
        self, name: str, title: str, *, out: Path, slo: str | None, baseline: Sequence[str] | None, runs: list[Measured]
    ) -> None:
        self._name = re.sub(r"[^\w.-]+", "-", name).strip("-.")
        self._title = title
        self._out = out
        self._slo = slo
        self._baseline = baseline
        self._runs = runs

    def run(self, experiment: "Source") -> Measured:
        """Measure an experiment, given as a file or as an object.

        Raises:
            AssertionError: the run is INVALID, or violates the objectives of the test's mark.
            HarnessError, EngineError, WorkloadError, ResultsError: as ``bakeoff run`` would print in one line.
        """
        __tracebackhide__ = True
        return self._measured(lambda: run(experiment, out=self._out))

    @_with_parameters_of(bench)
    def bench(self, *arguments: Any, **options: Any) -> Measured:  # noqa: ANN401  (those of the function)
        """Measure a running server; takes the parameters of ``bakeoff.bench``.

        Raises:
            AssertionError, HarnessError, EngineError, WorkloadError, ResultsError: as :meth:`run`.
        """
        __tracebackhide__ = True
        given: dict[str, Any] = {"name": self._name, "out": self._out} | options
        return self._measured(lambda: bench(*arguments, **given))

    def _measured(self, measure: Callable[[], Run]) -> Measured:
        __tracebackhide__ = True
        with OneLine():
            if self._slo is not None:
                objectives(self._slo)  # fail on a typo now, not after minutes of measuring
            run = measure()
        measured = Measured(self._new_title(), run, self._baseline)
        self._runs.append(measured)
        if reason := why_invalid(measured.results):
            raise AssertionError(f"the run is INVALID: {reason}\n  full report: bakeoff report {measured.path}")
        if self._slo is not None:
            measured.assert_slo(self._slo)
        return measured

    def _new_title(self) -> str:
        titles = {run.title for run in self._runs}
        numbered = (f"{self._title} #{number}" for number in itertools.count(2))
        return next(title for title in itertools.chain([self._title], numbered) if title not in titles)
