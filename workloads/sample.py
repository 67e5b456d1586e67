"""Recorded sessions as JSON lines: ``bakeoff workloads sample`` writes them, the workload ``sessions`` sends them.

Each line is a :class:`~bakeoff.workloads.types.Session`.
"""

import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from bakeoff.workloads.errors import BadTrace, WorkloadError
from bakeoff.workloads.graph import problem_of
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.traces.reading import lines, opened
from bakeoff.workloads.types import Session, Workload

_GZIP_WBITS = 31
"""zlib's code for a gzip container. Its header has neither time nor file name, so equal samples give equal bytes."""
_HEAD_BYTES = 2**16


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sends the sessions of a file of JSON lines."""

    path: str
    """The file; gzip if it ends in ``.gz``."""

    def own_rate_per_s(self) -> float | None:
        """None: the rate is unknown without reading the whole file."""
        return None

    def sessions(self, tokenizer: Tokenizer, seed: Seed) -> Iterator[Session]:  # noqa: ARG002  (nothing is drawn)
        """The file's sessions, unchanged.

        Raises:
            BadTrace: a line is not a session.
        """
        decoder = msgspec.json.Decoder(Session)
        for number, line in lines(self.path):
            try:
                session = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise BadTrace(
                    f"{self.path}, row {number}: not a session ({error}); write the file with: bakeoff workloads sample"
                ) from error
            if (problem := problem_of(session.turns)) is not None:
                raise BadTrace(f"{self.path}, row {number}: {problem}")
            for turn in session.turns:
                if turn.passages is None and (turn.messages is None) == (turn.prompt is None):
                    raise BadTrace(f"{self.path}, row {number}: a turn needs either messages or prompt")
            yield session

    def notes(self) -> list[str]:
        """The file's path."""
        return [f"sessions of {self.path}"]


class SampleCount(msgspec.Struct):
    """Counts of what :func:`session_lines` has written so far."""

    sessions: int = 0
    requests: int = 0
    prompt_tokens: int = 0

    def add(self, session: Session) -> None:
        """Count a session."""
        self.sessions += 1
        self.requests += len(session.turns)
        self.prompt_tokens += sum(turn.input_tokens for turn in session.turns)


def session_lines(
    workload: Workload, tokenizer: Tokenizer, seed: Seed, limit: int, count: SampleCount
) -> Iterator[bytes]:
    """The first ``limit`` sessions, one JSON line each; ``count`` is updated with each of them.

    Raises:
        WorkloadError: the workload has no session.
    """
    encoder = msgspec.json.Encoder()
    for session in itertools.islice(workload.sessions(tokenizer, seed), limit):
        count.add(session)
        yield encoder.encode(session) + b"\n"
    if not count.sessions:
        raise WorkloadError("the workload has no session; check its options, such as max_input_tokens")


def gzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress a stream."""
    compressor = zlib.compressobj(wbits=_GZIP_WBITS)
    for chunk in chunks:
        if compressed := compressor.compress(chunk):
            yield compressed
    yield compressor.flush()


def holds_sessions(path: Path) -> bool:
    """Whether a file's beginning looks like the output of :func:`session_lines`."""
    with opened(path) as file:
        head = file.read(_HEAD_BYTES).lstrip()
    return head.startswith(b'{"id":') and b'"turns":[{"input_tokens":' in head
