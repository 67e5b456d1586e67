"""Saves runs as the harness does: whole runs, or records without end until the process is killed."""

import contextlib
import itertools
import os
import random
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.files.jsonl import Appender
from bakeoff.results.log.run_log import RunEnded, RunLogWriter, RunStarted, TrialFinished
from bakeoff.results.log.store import RunFolder, TrialFolder, new_run_id
from bakeoff.results.records import (
    Load,
    Outcome,
    Phase,
    RequestRecord,
    RunStatus,
    StreamEnd,
    StreamRecord,
    TelemetryRecord,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
)
from bakeoff.results.schema import SCHEMA_VERSION

PLAN = TrialPlan("r1-e-1", "e", "w", Load(concurrency=1), 1)
FRAMES, SAMPLES, EVENTS, REQUESTS = range(4)
"""Kinds of records, as acknowledgements encode them."""
_ACKNOWLEDGEMENT = struct.Struct("<BI")
_LARGE_BYTES = 2 << 20
"""A kill can cut a write of many pages short."""


def new_run(root: Path, name: str) -> RunFolder:
    """Create a run with one planned trial."""
    started = RunStarted(
        schema_version=SCHEMA_VERSION, run_id=new_run_id(name), name=name, created_utc="2026-11-21T00:00:00+00:00",
        pid=os.getpid(), host="h", bakeoff_version="0", git_commit=None, experiment={}, environment={}, plan=[PLAN],
    )  # fmt: skip
    run = RunFolder.create(root, started)
    run.trial(PLAN.id).create()
    return run


def save(root: Path, count: int) -> None:
    """Save ``count`` whole runs of one trial, each with a log, a sample, its requests and its record."""
    for number in range(count):
        run = new_run(root, "save")
        trial = run.trial(PLAN.id)
        with FrameAppender(trial.stream_log(0)) as streams, Appender(trial.telemetry_log) as samples:
            streams.append(_stream(number, 100))
            samples.append(TelemetryRecord(number, "host", {}))
        trial.write_requests([_request(number)])
        with contextlib.closing(RunLogWriter(run.log_path, time.monotonic_ns)) as log:
            log.append(TrialFinished(record=_record(number)))
            log.append(RunEnded(status=RunStatus.COMPLETE, ended_utc="2026-11-21T00:00:01+00:00"))


class Writer:
    """Writes to one run until the process is killed, and acknowledges each record once it counts as safe.

    Args:
        run: the run; the numbers continue those of its records.
        acknowledge: called with the kind and the number of each record; each kind is numbered consecutively.
    """

    def __init__(self, run: RunFolder, acknowledge: Callable[[int, int], None]) -> None:
        self._run = run
        self._trial = run.trial(PLAN.id)
        self._acknowledge = acknowledge
        self._next = {kind: itertools.count(len(numbers)) for kind, numbers in readable_numbers(run).items()}

    def write(self, rng: random.Random) -> None:
        """Never returns."""
        with FrameAppender(self._trial.stream_log(0)) as streams, Appender(self._trial.telemetry_log) as samples:
            while True:
                kind = rng.choices(range(4), weights=[20, 20, 1, 1])[0]
                numbers = [next(self._next[kind]) for _ in range(rng.randint(1, 3) if kind == FRAMES else 1)]
                size = rng.choice([10, 1_000, 30_000, _LARGE_BYTES])
                self._store(kind, numbers, size, streams, samples)
                for number in numbers:
                    self._acknowledge(kind, number)

    def _store(self, kind: int, numbers: list[int], size: int, streams: FrameAppender, samples: Appender) -> None:
        if kind == FRAMES:
            for number in numbers:
                streams.append(_stream(number, size))
            streams.flush()
        elif kind == SAMPLES:
            samples.append(TelemetryRecord(numbers[0], "host", {"padding": "x" * size}))
        elif kind == EVENTS:
            record = msgspec.structs.replace(_record(numbers[0]), engine_log_tail=["x" * size])
            with contextlib.closing(RunLogWriter(self._run.log_path, time.monotonic_ns)) as log:
                log.append(TrialFinished(record=record))
        else:
            self._trial.write_requests(_request(number) for number in range(numbers[0] + 1))


def readable_numbers(run: RunFolder) -> dict[int, list[int]]:
    """Kind → the numbers of all readable records; requests are written as a whole, with all numbers up to the last.

    Raises:
        RunUnreadable: a file is damaged.
    """
    trial: TrialFolder = run.trial(PLAN.id)
    finished = [event for event in run.read_log().events if isinstance(event, TrialFinished)]
    return {
        FRAMES: [stream.index for stream in trial.read_streams()],
        SAMPLES: [sample.t_ns for sample in trial.read_telemetry().records],
        EVENTS: [event.record.order for event in finished],
        REQUESTS: [request.index for request in trial.read_requests()],
    }


def pipe_acknowledger(descriptor: int) -> Callable[[int, int], None]:
    """A function that acknowledges through a pipe."""

    def acknowledge(kind: int, number: int) -> None:
        os.write(descriptor, _ACKNOWLEDGEMENT.pack(kind, number))

    return acknowledge


def acknowledgements(data: bytes) -> Iterable[tuple[int, int]]:
    """Kind and number of each record that was acknowledged through the pipe."""
    return _ACKNOWLEDGEMENT.iter_unpack(data)


def _stream(index: int, size: int) -> StreamRecord:
    return StreamRecord(
        index=index, phase=Phase.MEASURED, session="s", turn=0, planned_ns=1, ended_ns=3,
        end=StreamEnd.COMPLETE, read_ns=[2], reads=[bytes(size)],
    )  # fmt: skip


def _request(index: int) -> RequestRecord:
    return RequestRecord(
        index=index, phase=Phase.MEASURED, session="s", turn=0, planned_ns=1, ended_ns=3, outcome=Outcome.OK
    )


def _record(order: int) -> TrialRecord:
    return TrialRecord(
        id=PLAN.id, engine="e", workload="w", load=PLAN.load, repeat=1, order=order, started_ns=0, ended_ns=4,
        issue_start_ns=0, issue_end_ns=4, window=Window(0, 4), planned_requests=1, workload_sha256="0",
        verdict=Verdict.VALID,
    )  # fmt: skip
