"""The policy of a gate on a new measurement: alternates two engines until the verdict is clear."""

from collections.abc import Sequence

import msgspec

from bakeoff.harness.conduct.policies import Done
from bakeoff.harness.conduct.policies.fixed_plan import FixedPlan
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.results import load
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import GateVerdict, Outcome, judge
from bakeoff.results.compare.sides import side_of
from bakeoff.results.compare.text import band_text, change_text
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.log.run_log import RunLog, TrialPlanned
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import TrialPlan
from bakeoff.results.statistics import Comparison
from bakeoff.results.statistics.comparison import scale_of
from bakeoff.results.statistics.power import MAX_RUNS
from bakeoff.results.statistics.sequential import analysis_schedule, nominal_levels

AGAIN = "-again"
"""Suffix of the candidate's label when an engine is gated against itself."""


def gate_experiment(experiment: Experiment, a: str, b: str, repeats: int | None = None) -> tuple[Experiment, str, str]:
    """The experiment reduced to baseline and candidate, and their labels; if these are equal, the engine is duplicated.

    Args:
        experiment: has both engines.
        a: label of the baseline.
        b: label of the candidate.
        repeats: maximum repeats; None for the experiment's.

    Raises:
        BadExperiment: the experiment has no such engine, or too few repeats for a verdict.
    """
    engines = {engine.name: engine for engine in experiment.engines}
    for label in (a, b):
        if label not in engines:
            raise BadExperiment(f"the experiment has no engine '{label}'; choose from {', '.join(engines)}")
    pair = [engines[a], engines[b]]
    if a == b:
        b = a + AGAIN
        pair[1] = msgspec.structs.replace(engines[a], label=b)
    chosen = msgspec.structs.replace(
        experiment, engines=pair, repeats=experiment.repeats if repeats is None else repeats
    )
    if chosen.repeats < 3:
        raise BadExperiment(f"a gate needs at least 3 repeats, not {chosen.repeats}; 8 find 5 % at a noise of 2 %")
    return chosen, a, b


def noise(primary: Comparison) -> list[str]:
    """A line on this machine's noise, from an engine compared with itself; none if there are too few runs."""
    evidence = primary.evidence
    if evidence is None:
        return []
    metric = CATALOGUE[primary.metric]
    scale = scale_of(metric)
    needed = f"more than {MAX_RUNS}" if evidence.runs_needed is None else f"about {evidence.runs_needed}"
    smallest = f"runs like these detect a change of {change_text(evidence.smallest_effect, scale)} in {metric.title}"
    sought = band_text(evidence.sought, scale)
    return [
        f"the same engine twice, so this is the machine's noise: {smallest}; {sought} needs {needed} runs per engine"
    ]


class InterimAnalyses:
    """Judges a run after some of its repeats (a group sequential test).

    Args:
        run: its folder.
        a: label of the baseline.
        b: label of the candidate.
        repeats: maximum repeats of the run.
        config: of the comparison; all analyses together share its alpha.
    """

    def __init__(self, run: RunFolder, a: str, b: str, repeats: int, config: ComparisonConfig) -> None:
        self._run = run
        self._labels = (a, b)
        repeats_analysed = analysis_schedule(repeats)
        self._levels = dict(zip(repeats_analysed, nominal_levels(config.alpha, repeats_analysed), strict=True))
        self._config = config

    def is_clear(self, repeat: int) -> bool:
        """Whether the verdict is clear after this many repeats; False if no analysis is due."""
        if repeat not in self._levels:
            return False
        try:
            verdict = self.analyse(repeat)
        except (NoEvidence, NotComparable):
            return False  # more repeats may help; if not, the final analysis raises again
        return verdict.outcome in {Outcome.NO_REGRESSION, Outcome.REGRESSION}

    def analyse(self, repeat: int) -> GateVerdict:
        """Judge the finished trials, at the significance level of this analysis.

        Raises:
            NoEvidence, NotComparable: as :func:`bakeoff.results.compare.gate.judge`.
        """
        run = load(self._run.path)
        a, b = (side_of(run, label) for label in self._labels)
        verdict = judge(a, b, msgspec.structs.replace(self._config, alpha=self._levels[repeat]))
        if self._labels[1] == self._labels[0] + AGAIN:
            verdict = msgspec.structs.replace(verdict, notes=[*verdict.notes, *noise(verdict.compared.primary)])
        return verdict

    def final(self) -> GateVerdict:
        """Judge a run that has ended.

        Raises:
            NoEvidence: too few trials are valid, and the INVALID ones do not accuse the candidate.
            NotComparable: as :func:`bakeoff.results.compare.gate.judge`.
        """
        plans = self._run.read_manifest().trials
        return self.analyse(max((plan.repeat for plan in plans), default=0))


class Gate:
    """Runs a fixed plan, but ends it after the repeat at which the verdict is clear.

    Args:
        plan: the trials in order.
        analyses: of the run.
    """

    def __init__(self, plan: Sequence[TrialPlan], analyses: InterimAnalyses) -> None:
        self._max_repeats = max(trial.repeat for trial in plan)
        self._fixed = FixedPlan(plan)
        self._analyses = analyses

    def next(self, log: RunLog) -> TrialPlanned | Done:
        """The next trial of the plan; done if a repeat has ended and the verdict is clear."""
        decision = self._fixed.next(log)
        repeat = max((planned.turn for planned in log.planned), default=0)
        begins_repeat = isinstance(decision, TrialPlanned) and decision.turn > repeat > 0
        if not begins_repeat or not self._analyses.is_clear(repeat):
            return decision
        note = f"ended after {repeat} of at most {self._max_repeats} repeats: the verdict was clear"
        return Done(log.why_lost, notes=(note,))
