"""The step log: times of requests and steps, recorded by engine process and HTTP process on one clock.

A file is a sequence of frames: a length in four bytes, big-endian, and that many bytes of msgpack, one record each
(docs/profile.md). Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import itertools
import os
import queue
import threading
import time
from pathlib import Path

import msgspec

from bakeoff.reference_engine.errors import UserMistakeError

_LENGTH_BYTES = 4
_BATCH = 256  # records that are encoded and written together, on another thread
_NUMBERS = itertools.count(1)


Chunk = tuple[int, int, int, int, int]
"""Tokens of one request that a step computed: its number; tokens in its cache before; tokens computed, and how many of
them were drafts; tokens that it got from the step, 0 while its prompt continues. A named tuple would cost three times
as much.
"""
Write = tuple[int, int, int]
"""One write of a stream: its output tokens; when the report of their step arrived; when their text is sent."""


class RequestQueued(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="queued"):
    """A request, in the engine process.

    Attributes:
        number: identifies it in steps.
        request_id: its id in the HTTP process.
        prompt_tokens: length of its prompt.
        submitted_ns: just before the HTTP process sends it; None if unknown.
        added_ns: when it entered the queue of the scheduler; None if it was there before the log began.
    """

    number: int
    request_id: str
    prompt_tokens: int
    submitted_ns: int | None
    added_ns: int | None


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="step"):
    """One step of the engine.

    Attributes:
        number: counts steps since the log began.
        planned_ns: before planning.
        launched_ns: after the last kernel was queued; on a CPU after the model.
        collected_ns: when the sampled tokens were on the host.
        chunks: the computed tokens.
        preempted: numbers of the requests that lost their blocks.
        running: requests with blocks, after the step.
        waiting: requests without blocks.
        used_blocks: KV blocks in use.
        computed_ns: when the device had computed the tokens; None if it does not run ahead of the host.
    """

    number: int
    planned_ns: int
    launched_ns: int
    collected_ns: int
    chunks: list[Chunk]
    preempted: list[int]
    running: int
    waiting: int
    used_blocks: int
    computed_ns: int | None = None


class HttpRecord(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="http"):
    """One HTTP request that was streamed, in the HTTP process.

    Attributes:
        request_ids: of its sequences; each begins with the id of the answer.
        received_ns: when its handler began.
        parsed_ns: after parsing and tokenising, before it is sent to the engine process.
        writes: of its tokens.
        ended_ns: when the answer had ended.
    """

    request_ids: list[str]
    received_ns: int
    parsed_ns: int
    writes: list[Write]
    ended_ns: int


class EventFile:
    """Appends records to a new file; a thread encodes and writes them in batches.

    Args:
        directory: made if it is missing.
        name: of the kind of records.

    Attributes:
        path: of the file.

    Raises:
        UserMistakeError: the directory is missing from the settings or cannot be written to.
    """

    def __init__(self, directory: str, name: str) -> None:
        if not directory:
            raise UserMistakeError("there is no place for a step log; start the server with --step-log-dir")
        self.path: Path = Path(directory) / f"{name}-{os.getpid()}-{next(_NUMBERS)}.frames"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
        except OSError as error:
            raise UserMistakeError(f"the step log {self.path} cannot be written: {error.strerror}") from error
        self._records: list[msgspec.Struct] = []
        self._batches: queue.SimpleQueue[list[msgspec.Struct] | None] = queue.SimpleQueue()
        self._failure: OSError | None = None
        self._writer = threading.Thread(target=self._write, name="step-log", daemon=True)
        self._writer.start()

    def append(self, record: msgspec.Struct) -> None:
        """Queues a record for the next batch."""
        self._records.append(record)
        if len(self._records) >= _BATCH:
            self._hand_over()

    def close(self) -> str:
        """Writes the remaining records; returns the path.

        Raises:
            UserMistakeError: the disk did not store all of it.
        """
        self._hand_over()
        self._batches.put(None)
        self._writer.join()
        self._file.close()
        if self._failure is not None:
            raise UserMistakeError(f"the step log {self.path} is incomplete: {self._failure.strerror}")
        return str(self.path)

    def _hand_over(self) -> None:
        batch, self._records = self._records, []
        self._batches.put(batch)

    def _write(self) -> None:
        encode = msgspec.msgpack.Encoder().encode
        while (batch := self._batches.get()) is not None:
            bodies = [encode(record) for record in batch]
            frames = b"".join(len(body).to_bytes(_LENGTH_BYTES, "big") + body for body in bodies)
            try:
                self._file.write(frames)
                self._file.flush()
            except OSError as error:
                self._failure = self._failure or error


class Recording:
    """Files of one kind, each from `start` to `stop`.

    Args:
        directory: of the files; empty if logs are off.
        name: of the kind of records.
    """

    def __init__(self, directory: str, name: str) -> None:
        self._directory, self._name = directory, name
        self._file: EventFile | None = None

    @property
    def is_on(self) -> bool:
        """Whether a file is being written."""
        return self._file is not None

    def start(self) -> str:
        """Begins a file; returns its path.

        Raises:
            UserMistakeError: there is no directory, a log is being written already, or the clock is not shared.
        """
        if self._file is not None:
            raise UserMistakeError("a step log is being written already; POST /stop_step_log ends it")
        check_clock()
        self._file = EventFile(self._directory, self._name)
        return str(self._file.path)

    def append(self, record: msgspec.Struct) -> None:
        """Records something; drops it while no file is open."""
        if self._file is not None:
            self._file.append(record)

    def stop(self) -> str:
        """Ends the file; returns its path.

        Raises:
            UserMistakeError: no log is being written, or it is incomplete.
        """
        file, self._file = self._file, None
        if file is None:
            raise UserMistakeError("no step log is being written; POST /start_step_log begins one")
        return file.close()


def check_clock() -> None:
    """Raises UserMistakeError unless the clock of steps is the one that other processes use."""
    clocks = {time.get_clock_info(name).implementation for name in ("perf_counter", "monotonic")}
    if len(clocks) != 1:
        raise UserMistakeError(f"a step log needs one monotonic clock, and this system has {', '.join(sorted(clocks))}")
