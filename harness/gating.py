"""A gate that is measured now: two engines of an experiment, side by side, until the verdict is clear."""

import msgspec

from harness.errors import BadExperiment
from harness.experiment import Experiment
from results import load
from results.errors import NoEvidence, NotComparable
from results.gate import GateVerdict, Outcome, judge
from results.metrics import CATALOGUE
from results.sides import side_of
from results.statistics import Comparison
from results.statistics.comparison import scale_of
from results.statistics.power import MAX_RUNS
from results.statistics.sequential import analysis_schedule, nominal_levels
from results.store import RunFolder
from results.terms import Terms
from results.text.comparison import band_text, change_text

TWIN = "-again"
"""Behind the label of an engine that is compared with itself."""


def two_sides(experiment: Experiment, a: str, b: str, repeats: int | None = None) -> tuple[Experiment, str, str]:
    """The experiment with two engines only, and their labels; one that is compared with itself is there twice.

    Args:
        experiment: names the engines.
        a: label of the baseline.
        b: label of the candidate.
        repeats: instead of the experiment's own, at most so many.

    Raises:
        BadExperiment: it has no such engine, or too few repeats for a verdict.
    """
    sides = {side.shown: side for side in experiment.engines}
    for label in (a, b):
        if label not in sides:
            raise BadExperiment(f"the experiment has no engine '{label}'; it has {', '.join(sides)}")
    pair = [sides[a], sides[b]]
    if a == b:
        b = a + TWIN
        pair[1] = msgspec.structs.replace(sides[a], label=b)
    chosen = msgspec.structs.replace(experiment, engines=pair, repeats=repeats or experiment.repeats)
    if chosen.repeats < 3:
        raise BadExperiment(f"a gate needs at least 3 repeats, not {chosen.repeats}; 8 find 5 % at a noise of 2 %")
    return chosen, a, b


def noise(primary: Comparison) -> list[str]:
    """What an engine against itself says of this machine, a line; none where there are too few runs."""
    evidence = primary.evidence
    if evidence is None:
        return []
    metric = CATALOGUE[primary.metric]
    scale = scale_of(metric)
    few = f"no {MAX_RUNS} runs" if evidence.runs_needed is None else f"about {evidence.runs_needed} runs"
    shown = f"runs like these show a change of {change_text(evidence.smallest_effect, scale)} in {metric.title}"
    band = band_text(evidence.band, scale)
    return [f"the same engine twice, so this is the machine's noise: {shown}; {few} of each side show {band}"]


class Looks:
    """Looks at a run while it grows, and knows when it may end.

    Args:
        run: its folder.
        a: label of the baseline.
        b: label of the candidate.
        repeats: the budget.
        terms: what was agreed; alpha is that of all looks together.

    Attributes:
        verdict: of the last look; None before the first.
    """

    def __init__(self, run: RunFolder, a: str, b: str, repeats: int, terms: Terms) -> None:
        self._run = run
        self._labels = (a, b)
        looks = analysis_schedule(repeats)
        self._levels = dict(zip(looks, nominal_levels(terms.alpha, looks), strict=True))
        self._terms = terms
        self.verdict: GateVerdict | None = None

    def clear(self, repeat: int) -> bool:
        """Whether the verdict is clear after so many repeats; asked after each one."""
        if repeat not in self._levels:
            return False
        try:
            self.look(repeat)
        except (NoEvidence, NotComparable):
            return False  # the end will say so
        return self.verdict is not None and self.verdict.outcome is not Outcome.CANNOT_TELL

    def look(self, repeat: int) -> GateVerdict:
        """Judge what is there, at the level of this look.

        Raises:
            NoEvidence, NotComparable: as :func:`results.gate.judge`.
        """
        run = load(self._run.path)
        a, b = (side_of(run, label) for label in self._labels)
        verdict = judge(a, b, msgspec.structs.replace(self._terms, alpha=self._levels[repeat]))
        if self._labels[1] == self._labels[0] + TWIN:
            verdict = msgspec.structs.replace(verdict, notes=[*verdict.notes, *noise(verdict.compared.primary)])
        self.verdict = verdict
        return verdict

    def last(self) -> GateVerdict:
        """Judge a run that has ended.

        Raises:
            NoEvidence: too little of the run is valid, and what is not says nothing against the candidate.
            NotComparable: as :func:`results.gate.judge`.
        """
        plans = self._run.read_manifest().trials
        return self.look(max((plan.repeat for plan in plans), default=0))
