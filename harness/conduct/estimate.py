"""Estimates the time left of a run."""

from statistics import fmean

from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.traffic.expected import ExpectedLength
from bakeoff.results.log.run_log import EngineStarted, EngineStarting, Event, TrialFinished
from bakeoff.results.units import NS_PER_S

START_S, _ATTACH_S = 15.0, 6.0
"""Guessed durations of a start and a stop, and of a warm-up of a running server, until a start has been measured."""
_STARTS_S = {"sglang": 100.0, "tensorrt_llm": 100.0, "tgi": 100.0, "vllm": 100.0}
"""Guessed starts of servers that load and compile for long: vLLM takes 110 to 160 s on two cores."""


class Estimate:
    """Estimates the time left of a run with a fixed plan from the starts and trials measured so far, else by guesses.

    Args:
        experiment: has the plan and the durations.

    Attributes:
        trials: number of trials, with those that were measured again.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._left = experiment.plan()
        self._planned = self.trials = len(self._left)
        self._expected = ExpectedLength(experiment)
        self._trials_s: dict[tuple[str, str], float] = {}
        self._ratios: list[float] = []  # of the trials so far to what was expected of them
        self._starts_s: dict[str, float] = {}
        self._guesses_s = {
            engine.name: _ATTACH_S if engine.addresses else _STARTS_S.get(engine.adapter, START_S)
            for engine in experiment.engines
        }
        self._starting_since_ns = 0
        self._running: tuple[str, int] | None = None

    def event(self, event: Event) -> None:
        """Update the estimate with one event."""
        match event:
            case EngineStarting():
                self._starting_since_ns, self._running = event.t_ns, None
            case EngineStarted():
                self._starts_s[event.engine] = (event.t_ns - self._starting_since_ns) / NS_PER_S
                self._running = (event.engine, event.turn)
            case TrialFinished():
                record = event.record
                self.trials += record.replaces is not None
                self._left = [plan for plan in self._left if plan.id != record.id]
                trial_s = (record.ended_ns - record.started_ns) / NS_PER_S
                self._trials_s[record.engine, record.load.label] = trial_s
                self._ratios.append(trial_s / self._expected.of(record.load))
            case _:
                pass

    def left_s(self) -> float:
        """Seconds left.

        A future start is taken to last as long as the engine's last one, else as the mean of all; a trial as long as
        the engine's last one under this load, else by as much more than expected as the trials so far. As many of them
        are taken to be measured again as of those so far.
        """
        to_start = {(plan.engine, plan.repeat) for plan in self._left} - {self._running}
        mean_s = fmean(self._starts_s.values()) if self._starts_s else None
        starts_s = sum(self._starts_s.get(engine, mean_s or self._guesses_s[engine]) for engine, _ in to_start)
        ratio = fmean(self._ratios) if self._ratios else 1.0
        trials_s = sum(
            self._trials_s.get((plan.engine, plan.load.label), ratio * self._expected.of(plan.load))
            for plan in self._left
        )
        done = self._planned - len(self._left)
        return starts_s + trials_s * (len(self._ratios) / done if done else 1.0)

    @property
    def text(self) -> str:
        """The time left: ``about 2:10``."""
        return f"{self.hedge} {clock_text(self.left_s())}"

    @property
    def hedge(self) -> str:
        """``about``; ``at least`` before the first trial where sessions have histories to send, however long."""
        return "at least" if self._expected.has_histories and not self._ratios else "about"


def clock_text(seconds: float) -> str:
    """Minutes and seconds, such as ``3:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
