"""A gate that is measured now: two engines of an experiment, side by side, until the verdict is clear."""

from collections.abc import Sequence

import msgspec

from harness.conduct.policies import Done
from harness.conduct.policies.fixed_plan import FixedPlan
from harness.errors import BadExperiment
from harness.experiment.config import Experiment
from results import load
from results.comparison_config import ComparisonConfig
from results.errors import NoEvidence, NotComparable
from results.gate import GateVerdict, Outcome, judge
from results.metrics import CATALOGUE
from results.records import TrialPlan
from results.run_log import RunLog, TrialPlanned
from results.sides import side_of
from results.statistics import Comparison
from results.statistics.comparison import scale_of
from results.statistics.power import MAX_RUNS
from results.statistics.sequential import analysis_schedule, nominal_levels
from results.store import RunFolder
from results.text.comparison import band_text, change_text

TWIN = "-again"
"""Ends the label of the second of two equal engines."""


def gate_experiment(experiment: Experiment, a: str, b: str, repeats: int | None = None) -> tuple[Experiment, str, str]:
    """The experiment with two engines only, and their labels; an engine that is compared with itself is in it twice.

    Args:
        experiment: names the engines.
        a: label of the baseline.
        b: label of the candidate.
        repeats: at most this many, instead of the experiment's own.

    Raises:
        BadExperiment: it has no such engine, or too few repeats for a verdict.
    """
    engines = {engine.shown: engine for engine in experiment.engines}
    for label in (a, b):
        if label not in engines:
            raise BadExperiment(f"the experiment has no engine '{label}'; it has {', '.join(engines)}")
    pair = [engines[a], engines[b]]
    if a == b:
        b = a + TWIN
        pair[1] = msgspec.structs.replace(engines[a], label=b)
    chosen = msgspec.structs.replace(experiment, engines=pair, repeats=repeats or experiment.repeats)
    if chosen.repeats < 3:
        raise BadExperiment(f"a gate needs at least 3 repeats, not {chosen.repeats}; 8 find 5 % at a noise of 2 %")
    return chosen, a, b


def noise(primary: Comparison) -> list[str]:
    """What an engine compared with itself shows of this machine, in one line; none where there are too few runs."""
    evidence = primary.evidence
    if evidence is None:
        return []
    metric = CATALOGUE[primary.metric]
    scale = scale_of(metric)
    few = f"no {MAX_RUNS} runs" if evidence.runs_needed is None else f"about {evidence.runs_needed} runs"
    shown = f"runs like these show a change of {change_text(evidence.smallest_effect, scale)} in {metric.title}"
    band = band_text(evidence.band, scale)
    return [f"the same engine twice, so this is the machine's noise: {shown}; {few} of each side show {band}"]


class InterimAnalyses:
    """Judges a run while it grows.

    Args:
        run: its folder.
        a: label of the baseline.
        b: label of the candidate.
        repeats: the budget.
        config: what was agreed; alpha is shared by all analyses.

    Attributes:
        verdict: of the last analysis; None before the first.
    """

    def __init__(self, run: RunFolder, a: str, b: str, repeats: int, config: ComparisonConfig) -> None:
        self._run = run
        self._labels = (a, b)
        repeats_analysed = analysis_schedule(repeats)
        self._levels = dict(zip(repeats_analysed, nominal_levels(config.alpha, repeats_analysed), strict=True))
        self._config = config
        self.verdict: GateVerdict | None = None

    def is_clear(self, repeat: int) -> bool:
        """Whether the verdict is clear after this many repeats; asked after each one."""
        if repeat not in self._levels:
            return False
        try:
            verdict = self.analyse(repeat)
        except (NoEvidence, NotComparable):
            return False  # the end will say so
        return verdict.outcome is not Outcome.CANNOT_TELL

    def analyse(self, repeat: int) -> GateVerdict:
        """Judge what is there, at the level of this analysis.

        Raises:
            NoEvidence, NotComparable: as :func:`results.gate.judge`.
        """
        run = load(self._run.path)
        a, b = (side_of(run, label) for label in self._labels)
        verdict = judge(a, b, msgspec.structs.replace(self._config, alpha=self._levels[repeat]))
        if self._labels[1] == self._labels[0] + TWIN:
            verdict = msgspec.structs.replace(verdict, notes=[*verdict.notes, *noise(verdict.compared.primary)])
        self.verdict = verdict
        return verdict

    def final(self) -> GateVerdict:
        """Judge a run that has ended.

        Raises:
            NoEvidence: too little of the run is valid, and what is not says nothing against the candidate.
            NotComparable: as :func:`results.gate.judge`.
        """
        plans = self._run.read_manifest().trials
        return self.analyse(max((plan.repeat for plan in plans), default=0))


class Gate:
    """A fixed plan that ends after the repeat at which the verdict is clear.

    Args:
        plan: the trials in order.
        analyses: of the run.
    """

    def __init__(self, plan: Sequence[TrialPlan], analyses: InterimAnalyses) -> None:
        self._budget = max(trial.repeat for trial in plan)
        self._fixed = FixedPlan(plan)
        self._analyses = analyses

    def next(self, log: RunLog) -> TrialPlanned | Done:
        """The next trial of the plan; done where a repeat has ended and the verdict is clear."""
        decision = self._fixed.next(log)
        repeat = max((planned.turn for planned in log.planned), default=0)
        begins_repeat = isinstance(decision, TrialPlanned) and decision.turn > repeat > 0
        if not begins_repeat or not self._analyses.is_clear(repeat):
            return decision
        note = f"ended after {repeat} of at most {self._budget} repeats: the verdict was clear"
        return Done("; ".join(lost.reason for lost in log.lost) or None, notes=(note,))
