"""Records the steps of the engine process; see `serving/event_log.py`."""

import contextlib

from bakeoff.reference_engine.core.outputs import StepReport
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.engine.step import Engine
from bakeoff.reference_engine.errors import UserMistakeError
from bakeoff.reference_engine.scheduling.step import Step
from bakeoff.reference_engine.serving.event_log import Recording, RequestQueued, StepRecord

_NS_PER_S = 1e9


class StepLog:
    """Records from `start` to `stop`.

    Args:
        directory: for logs; empty if they are off.
        engine: whose steps are recorded.
    """

    def __init__(self, directory: str, engine: Engine) -> None:
        self._recording = Recording(directory, "steps")
        self._engine = engine
        self._numbers: dict[str, int] = {}
        self._num_steps = 0

    def start(self) -> str:
        """Starts a log; returns its path.

        Raises:
            UserMistakeError: there is no directory, a log is being written already, or the clock is not shared.
        """
        path = self._recording.start()
        self._numbers, self._num_steps = {}, 0
        self._engine.on_step = self._step
        return path

    def stop(self) -> str:
        """Ends the log; returns its path.

        Raises:
            UserMistakeError: no log is being written, or it is incomplete.
        """
        self._engine.on_step = None
        return self._recording.stop()

    def close(self) -> None:
        """Ends a log that is being written."""
        if self._recording.is_on:
            with contextlib.suppress(UserMistakeError):
                self.stop()

    def added(self, request: Request, now_s: float) -> None:
        """Records that a request, with its siblings, has entered the queue."""
        if self._recording.is_on:
            for member in (request, *request.siblings):
                self._name(member, now_s)

    def _name(self, request: Request, added_s: float | None) -> None:
        number = self._numbers[request.request_id] = len(self._numbers)
        record = RequestQueued(
            number, request.request_id, request.prompt_len, _ns(request.arrival_s), _ns(added_s)
        )  # fmt: skip
        self._recording.append(record)

    def _step(self, step: Step, report: StepReport) -> None:
        """Records a step; runs between two steps and takes 0.5 µs a sequence."""
        numbers = self._numbers
        for request in (*(chunk.request for chunk in step.chunks), *(request for request, _ in step.preempted)):
            if request.request_id not in numbers:
                self._name(request, None)
        counts: dict[str, int] = {}
        for output in report.outputs:
            counts[output.request_id] = counts.get(output.request_id, 0) + 1
        chunks = [
            (
                numbers[name := chunk.request.request_id], chunk.start, chunk.length, len(chunk.drafts),
                counts.get(name, 0) if chunk.is_sampled else 0,
            )
            for chunk in step.chunks
        ]  # fmt: skip
        planned_ns, launched_ns, collected_ns = [round(time_s * _NS_PER_S) for time_s in report.times[:3]]
        record = StepRecord(
            self._num_steps, planned_ns, launched_ns, collected_ns, chunks,
            [numbers[request.request_id] for request, _ in step.preempted],
            report.running, report.waiting, report.used_blocks, _ns(report.times.computed_s),
        )  # fmt: skip
        self._recording.append(record)
        self._num_steps += 1


def _ns(time_s: float | None) -> int | None:
    return None if time_s is None else round(time_s * _NS_PER_S)
