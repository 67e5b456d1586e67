"""Shows a run's progress, from its log: a live bar on a terminal, plain lines elsewhere."""

import abc
import contextlib
import math
import time
from collections.abc import Callable, Generator
from enum import StrEnum
from statistics import fmean
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from bakeoff.harness.client.wire.orders import Silence
from bakeoff.harness.conduct.estimate import START_S, Estimate, clock_text
from bakeoff.harness.conduct.policies.capacity_search import TRIALS_PER_TURN
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.traffic.expected import ExpectedLength
from bakeoff.results.log.run_log import (
    EngineStarted,
    EngineStarting,
    LevelJudged,
    RunLog,
    TrialFinished,
    TrialPlanned,
)
from bakeoff.results.log.search import SearchConfig
from bakeoff.results.records import TrialPlan, TrialRecord, Verdict
from bakeoff.results.report.search_lines import attempt_text
from bakeoff.results.text.findings import sentences
from bakeoff.results.text.format import plain
from bakeoff.results.units import NS_PER_S

_QUIET_S = 30.0
"""Seconds without a line after which a stage is printed."""
_SILENCE_S = 8.0
"""Seconds without a byte from the server after which that is printed."""


class Stage(StrEnum):
    """What a trial does before its window, which may take minutes where sessions have many long prompts."""

    PLAN = "planning the sessions in progress"
    PRIME = "filling the cache with their history"
    RAMP = "ramp"
    WINDOW = "window"


class Observer(Protocol):
    """Is notified of a run's progress."""

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """A model is being downloaded."""
        ...

    def event(self, log: RunLog) -> None:
        """The log has one more event."""
        ...

    def stage(self, plan: TrialPlan, stage: Stage) -> None:
        """A trial has begun a stage."""
        ...

    def silence(self, silence: Silence | None) -> None:
        """The server has sent nothing for a time, though requests are in flight; None: it has."""
        ...

    def notice(self, text: str) -> None:
        """Something has happened that the user should know, in a line."""
        ...


class QuietObserver:
    """Prints nothing."""

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Ignore a download's progress."""

    def event(self, log: RunLog) -> None:
        """Ignore an event."""

    def stage(self, plan: TrialPlan, stage: Stage) -> None:
        """Ignore a stage."""

    def silence(self, silence: Silence | None) -> None:
        """Ignore a silence."""

    def notice(self, text: str) -> None:
        """Ignore a notice."""


class _LineObserver(abc.ABC):
    """Prints lines."""

    _next_silence_s = _SILENCE_S

    def silence(self, silence: Silence | None) -> None:
        """Print a long silence, and again each time that it has become twice as long."""
        if silence is None:
            self._next_silence_s = _SILENCE_S
        elif silence.seconds >= self._next_silence_s:
            self._next_silence_s = 2 * silence.seconds
            self._print(silence_text(silence))

    def notice(self, text: str) -> None:
        """Print it."""
        self._print(text)

    @abc.abstractmethod
    def _print(self, text: str) -> None: ...


class PlainObserver(_LineObserver):
    """Prints one line per start and trial, for log files, pipes and CI; and one per stage that is entered late.

    Args:
        console: to print to.
        experiment: of the run.
        clock: seconds, never going back.
    """

    def __init__(self, console: Console, experiment: Experiment, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._estimate = Estimate(experiment)
        self._clock = clock
        self._megabytes = -1
        self._printed_s = clock()

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Print a line every 20 MB."""
        if have_bytes // 20_000_000 != self._megabytes:
            self._megabytes = have_bytes // 20_000_000
            self._print(f"model: {megabytes_text(have_bytes, total_bytes)}")

    def event(self, log: RunLog) -> None:
        """Print each start, and each trial's result with the time left."""
        event = log.events[-1]
        self._estimate.event(event)
        match event:
            case EngineStarting():
                self._print(f"preparing {event.engine}, repeat {event.turn}")
            case TrialFinished():
                number = len(log.finished)
                left = f", {self._estimate.text} left" if number < self._estimate.trials else ""
                self._print(f"[{number}/{self._estimate.trials}] {trial_line(event.record)}{left}")
            case _:
                pass

    def stage(self, plan: TrialPlan, stage: Stage) -> None:
        """Print a stage if nothing was printed for long."""
        if self._clock() - self._printed_s >= _QUIET_S:
            self._print(f"{_trial_text(plan)}: {stage.value}")

    def _print(self, text: str) -> None:
        self._printed_s = self._clock()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class SearchObserver(_LineObserver):
    """Prints one line per start and judged trial of a search, whose number of trials is not known beforehand.

    Args:
        console: to print on.
        config: of the search.
        expected: length of its trials.
    """

    def __init__(self, console: Console, config: SearchConfig, expected: ExpectedLength) -> None:
        self._console = console
        self._over = config.over
        self._most = config.trials * len(config.engines) * len(config.objectives)
        self._limit_s = 60 * (config.minutes or math.inf) * len(config.engines) * len(config.objectives)
        self._trials_s: list[float] = []
        objectives = " and ".join(config.tiers.values()) or config.slo
        range_text = f"{config.load_at(config.levels[0]).label} to {config.load_at(config.levels[-1]).label}"
        seconds = self._most * (expected.of(config.load_at(config.levels[0])) + START_S / TRIALS_PER_TURN)
        budget = f"at most {self._most} trials, about {clock_text(min(seconds, self._limit_s))}"
        self._print(f"search from {range_text} for {objectives}: {budget}")

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Print a line when the download is complete."""
        if have_bytes == total_bytes:
            self._print(f"model: {megabytes_text(have_bytes, total_bytes)}")

    def event(self, log: RunLog) -> None:
        """Print each start and each judged trial."""
        match event := log.events[-1]:
            case EngineStarting():
                self._print(f"preparing {event.engine}")
            case LevelJudged():
                text = attempt_text(self._over, event.engine, event.attempt)
                self._print(f"{event.tier}: {text}" if event.tier else f"{text}{self._left()}")
            case TrialFinished() if event.record.reused_from is None:
                self._trials_s.append((event.record.ended_ns - event.record.started_ns) / NS_PER_S)
            case _:
                pass

    def _left(self) -> str:
        """``; at most about 5:10 left``: the trials that are left, as long as those so far."""
        left = self._most - len(self._trials_s)
        if not self._trials_s or left <= 0:
            return ""
        left_s = min(left * fmean(self._trials_s), max(0.0, self._limit_s - sum(self._trials_s)))
        return f"; at most about {clock_text(left_s)} left"

    def stage(self, plan: TrialPlan, stage: Stage) -> None:
        """Ignore a stage."""

    def _print(self, text: str) -> None:
        self._console.print(plain(text), markup=False, highlight=False, soft_wrap=True)


class LiveObserver:
    """Shows a progress bar with the time left, and prints a line per INVALID trial."""

    def __init__(self, bar: Progress, experiment: Experiment) -> None:
        self._bar = bar
        self._estimate = Estimate(experiment)
        self._doing = "preparing"
        self._task = bar.add_task(self._doing, total=self._estimate.trials, ends_s=None, hedge="")

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Show the bytes downloaded so far."""
        self._bar.update(self._task, description=f"model {megabytes_text(have_bytes, total_bytes)}")

    def event(self, log: RunLog) -> None:
        """Show the current start or trial; print an INVALID trial with its reason."""
        event = log.events[-1]
        self._estimate.event(event)
        match event:
            case EngineStarting():
                self._show(f"preparing {event.engine}, repeat {event.turn}")
            case EngineStarted() | TrialPlanned() if (plan := log.under_way) is not None:
                self._show(_trial_text(plan))
            case TrialFinished():
                self._bar.update(self._task, advance=1, total=self._estimate.trials)
                if event.record.verdict is Verdict.INVALID:
                    self._bar.console.print(trial_line(event.record), markup=False, highlight=False)
            case _:
                pass

    def stage(self, plan: TrialPlan, stage: Stage) -> None:
        """Show the stage beside the trial."""
        self._show(f"{_trial_text(plan)}: {stage.value}")

    def silence(self, silence: Silence | None) -> None:
        """Show a long silence in place of the stage."""
        text = self._doing if silence is None or silence.seconds < _SILENCE_S else silence_text(silence)
        self._bar.update(self._task, description=text)

    def notice(self, text: str) -> None:
        """Print it above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        self._doing = text
        ends_s = self._bar.get_time() + self._estimate.left_s()
        self._bar.update(self._task, description=text, ends_s=ends_s, hedge=self._estimate.hedge)


class _LeftColumn(ProgressColumn):
    """The estimated time left, which counts down between the events of a run."""

    max_refresh = 1.0

    def render(self, task: Task) -> Text:
        ends_s: float | None = task.fields["ends_s"]
        left = "" if ends_s is None else clock_text(max(0.0, ends_s - task.get_time()))
        return Text(f"{task.fields['hedge']} {left} left" if left else "")


def plan_text(experiment: Experiment) -> str:
    """What a run will do: ``chat to 2 engines at 1 load, 3 repeats: 6 trials, about 2:10``."""
    plan = experiment.plan()
    engines, loads = len(experiment.engines), len(experiment.loads)
    counts = f"{_counted(engines, 'engine')} at {_counted(loads, 'load')}, {_counted(experiment.repeats, 'repeat')}"
    return f"{experiment.workload.name} to {counts}: {_counted(len(plan), 'trial')}, {Estimate(experiment).text}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextlib.contextmanager
def progress(console: Console, experiment: Experiment, log: RunLog) -> Generator[Observer]:
    """The observer of a run: one line per trial for a search; else a live bar on a terminal, plain lines elsewhere."""
    if log.search is not None:
        yield SearchObserver(console, log.search, ExpectedLength(experiment))
        return
    console.print(plan_text(experiment), markup=False, highlight=False)
    if not console.is_terminal:
        yield PlainObserver(console, experiment)
    else:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            _LeftColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bar:
            yield LiveObserver(bar, experiment)


def trial_line(record: TrialRecord) -> str:
    """A trial's result in a line, such as ``reference c=8 r1: VALID``, or INVALID and why."""
    why = f" ({sentences(record.invalidating)})" if record.invalidating else ""
    again = ", measured again" if record.replaces else ""
    reused = f", reused from {record.reused_from}" if record.reused_from else ""
    return f"{record.engine} {record.load.label} r{record.repeat}{again}: {record.verdict.value}{why}{reused}"


def _trial_text(plan: TrialPlan) -> str:
    return f"{plan.engine} {plan.load.label}, repeat {plan.repeat}"


def silence_text(silence: Silence) -> str:
    """How long nothing has come, for how many requests, and how long each may wait."""
    requests = _counted(silence.in_flight, "request")
    return f"nothing received for {silence.seconds:.0f} s: {requests} in flight, timeout {silence.timeout_s:g} s"


def megabytes_text(have_bytes: int, total_bytes: int | None) -> str:
    """A download's progress, such as ``21 of 93 MB``, or ``21 MB`` if the total is not known."""
    total = f" of {total_bytes / 1e6:.0f}" if total_bytes else ""
    return f"{have_bytes / 1e6:.0f}{total} MB"
