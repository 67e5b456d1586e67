"""Changes to the logs of synthetic runs, as a test needs them."""

import contextlib
from pathlib import Path

import msgspec

from bakeoff.results import load
from bakeoff.results.log.run_log import Event, RunEnded, RunLogWriter, RunStarted, TrialFinished, TrialPlanned
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus, Startup, TrialRecord
from bakeoff.results.run.run import Run

_GIB = 1 << 30


def amend(path: Path, **changes: object) -> None:
    """Change the first and the last event in the log of a run; a run without an end event gets one if it needs one."""
    folder = RunFolder(path)
    events = folder.read_log().events
    of_end = {name: changes.pop(name) for name in ("status", "failure", "ended_utc") if name in changes}
    started = msgspec.structs.replace(events[0], **changes)
    last = events[-1] if isinstance(events[-1], RunEnded) else RunEnded(status=RunStatus.FAILED, ended_utc="")
    between = [event for event in events[1:] if not isinstance(event, RunEnded)]
    end: list[Event] = [msgspec.structs.replace(last, **of_end)] if of_end or last is events[-1] else []
    folder.write_log([started, *between, *end])


def amend_trial(path: Path, trial: str, **changes: object) -> None:
    """Change the record of a finished trial."""
    folder = RunFolder(path)
    events: list[Event] = []
    for event in folder.read_log().events:
        if isinstance(event, TrialFinished) and event.record.id == trial:
            data = msgspec.to_builtins(event.record) | changes
            event = TrialFinished(record=msgspec.convert(data, TrialRecord))  # noqa: PLW2901
        events.append(event)
    folder.write_log(events)


def begin_trial(folder: RunFolder, trial: str) -> None:
    """Record that a trial of the plan is the next one."""
    started = folder.read_log().started
    assert isinstance(started, RunStarted)
    plan = next(plan for plan in started.plan if plan.id == trial)
    append(folder, TrialPlanned(plan=plan, turn=plan.repeat))


def append(folder: RunFolder, event: Event) -> None:
    """Append one more event."""
    with contextlib.closing(RunLogWriter(folder.log_path, lambda: event.t_ns)) as log:
        log.append(event)


def taking_gpus(run: Run, gpus: int) -> Run:
    """The run, of engines that took this many of four GPUs when they started."""
    before = [_GIB // 2] * 4
    ready = [_GIB // 2 + (40 * _GIB if gpu < gpus else 300 << 20) for gpu in range(4)]
    start = Startup(
        host_available_before_bytes=0, host_available_ready_bytes=0, gpu_used_before_bytes=before,
        gpu_used_ready_bytes=ready,
    )  # fmt: skip
    for trial in run.finished:
        amend_trial(run.path, trial.record.id, startup=start)
    return load(run.path)
