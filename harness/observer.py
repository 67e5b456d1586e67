"""What a run tells whoever watches it, and two who watch: a live terminal and a plain log."""

import contextlib
import time
from collections.abc import Callable, Generator
from statistics import fmean
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.experiment import Experiment
from results.records import TrialPlan, TrialRecord, Verdict
from results.report.search_lines import attempt_text
from results.search import Attempt, SearchRecord
from results.text.findings import sentences
from results.text.format import plain

_START_S = 6.0
"""First guess of a start, until one was seen."""
_TAIL_SHARE = 1.3
"""First guess of window and tail together, over the length of the window."""


class Observer(Protocol):
    """Hears of a run's progress."""

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """A model is being downloaded."""
        ...

    def starting(self, label: str, repeat: int) -> None:
        """An engine is being started."""
        ...

    def trial_started(self, plan: TrialPlan) -> None:
        """A trial begins."""
        ...

    def trial_finished(self, record: TrialRecord) -> None:
        """A trial has been stored."""
        ...


class Estimate:
    """Time left of a run: measured lengths of starts and trials like those to come, else guesses.

    Args:
        experiment: its plan and durations.
        clock: seconds, from any origin.
    """

    def __init__(self, experiment: Experiment, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = experiment.plan()
        self._guess_s = experiment.trial.ramp_s + experiment.trial.duration_s * _TAIL_SHARE
        self._trials_s: dict[tuple[str, str], float] = {}
        self._starts_s: dict[str, float] = {}
        self._clock = clock
        self._starting_since_s: float | None = None
        self._running: tuple[str, int] | None = None

    def starting(self) -> None:
        """An engine is being started; its start lasts until its first trial, so it includes the warm-up."""
        self._starting_since_s, self._running = self._clock(), None

    def trial_started(self, plan: TrialPlan) -> None:
        """The engine of this trial runs."""
        if self._starting_since_s is not None:
            self._starts_s[plan.engine] = self._clock() - self._starting_since_s
        self._starting_since_s, self._running = None, (plan.engine, plan.repeat)

    def finished(self, record: TrialRecord) -> None:
        """Take a finished trial into account."""
        self._left = [plan for plan in self._left if plan.id != record.id]
        self._trials_s[record.engine, record.load.label] = (record.ended_ns - record.started_ns) / 1e9

    def left_s(self) -> float:
        """Seconds left; starts to come are taken to last as the engine's last one, else as the mean of the others."""
        to_start = {(plan.engine, plan.repeat) for plan in self._left} - {self._running}
        start_s = fmean(self._starts_s.values()) if self._starts_s else _START_S
        starts_s = sum(self._starts_s.get(engine, start_s) for engine, _ in to_start)
        trials_s = sum(self._trials_s.get((plan.engine, plan.load.label), self._guess_s) for plan in self._left)
        return starts_s + trials_s


class PlainObserver:
    """One line per event: for logs, pipes and CI."""

    def __init__(self, console: Console, experiment: Experiment) -> None:
        self._console = console
        self._estimate = Estimate(experiment)
        self._total = len(experiment.plan())
        self._done = 0
        self._megabytes = -1

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Every 20 MB."""
        if have_bytes // 20_000_000 != self._megabytes:
            self._megabytes = have_bytes // 20_000_000
            self._say(f"model: {megabytes_text(have_bytes, total_bytes)}")

    def starting(self, label: str, repeat: int) -> None:
        """Which engine."""
        self._estimate.starting()
        self._say(f"starting {label}, repeat {repeat}")

    def trial_started(self, plan: TrialPlan) -> None:
        """No line of its own: that comes with the result."""
        self._estimate.trial_started(plan)

    def trial_finished(self, record: TrialRecord) -> None:
        """The result and the time left."""
        self._done += 1
        self._estimate.finished(record)
        left = clock_text(self._estimate.left_s())
        self._say(f"[{self._done}/{self._total}] {trial_line(record)}, about {left} left")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


class SearchObserver:
    """One line for each start and each trial of a search: nobody knows how many there will be."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Once, when all is there."""
        if have_bytes == total_bytes:
            self._say(f"model: {megabytes_text(have_bytes, total_bytes)}")

    def starting(self, label: str, repeat: int) -> None:  # noqa: ARG002  (a search has one)
        """Which engine."""
        self._say(f"starting {label}")

    def trial_started(self, plan: TrialPlan) -> None:
        """Nothing: the line comes with the result."""

    def trial_finished(self, record: TrialRecord) -> None:
        """Nothing: it is not yet judged."""

    def judged(self, search: SearchRecord, engine: str, attempt: Attempt) -> None:
        """What the trial said."""
        self._say(attempt_text(search, engine, attempt))

    def _say(self, text: str) -> None:
        self._console.print(plain(text), markup=False, highlight=False, soft_wrap=True)


class LiveObserver:
    """A progress bar with the time left, and a line for each INVALID trial."""

    def __init__(self, progress: Progress, experiment: Experiment) -> None:
        self._progress = progress
        self._estimate = Estimate(experiment)
        self._task = progress.add_task("preparing", total=len(experiment.plan()), left="")

    def fetching(self, have_bytes: int, total_bytes: int | None) -> None:
        """Bytes so far."""
        self._progress.update(self._task, description=f"model {megabytes_text(have_bytes, total_bytes)}")

    def starting(self, label: str, repeat: int) -> None:
        """Which engine."""
        self._estimate.starting()
        self._show(f"starting {label}, repeat {repeat}")

    def trial_started(self, plan: TrialPlan) -> None:
        """Which trial."""
        self._estimate.trial_started(plan)
        self._show(f"{plan.engine} {plan.load.label}, repeat {plan.repeat}")

    def trial_finished(self, record: TrialRecord) -> None:
        """Advance; an INVALID trial stays on the screen with its reason."""
        self._estimate.finished(record)
        self._progress.advance(self._task)
        if record.verdict is Verdict.INVALID:
            self._progress.console.print(trial_line(record), markup=False, highlight=False)

    def _show(self, text: str) -> None:
        left = f"about {clock_text(self._estimate.left_s())} left"
        self._progress.update(self._task, description=text, left=left)


@contextlib.contextmanager
def observer(console: Console, experiment: Experiment) -> Generator[Observer]:
    """A live bar on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield PlainObserver(console, experiment)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        yield LiveObserver(progress, experiment)


def trial_line(record: TrialRecord) -> str:
    """``reference c=8 r1: VALID``, or INVALID and why."""
    why = f" ({sentences(record.invalidating)})" if record.invalidating else ""
    return f"{record.engine} {record.load.label} r{record.repeat}: {record.verdict.value}{why}"


def clock_text(seconds: float) -> str:
    """``3:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def megabytes_text(have_bytes: int, total_bytes: int | None) -> str:
    """``21 of 93 MB``, or ``21 MB`` when the whole is not known."""
    total = f" of {total_bytes / 1e6:.0f}" if total_bytes else ""
    return f"{have_bytes / 1e6:.0f}{total} MB"
