"""Sessions of a workload as JSON lines, which the workload ``sessions`` sends as they are."""

import contextlib
import itertools
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from results.atomic import write_atomic
from workloads import Seed, Session, Tokenizer, Workload, WorkloadError

_GZIP = 31
"""zlib's name for gzip's largest window; the file then holds neither time nor name, so that equal samples are equal."""


class Sampled(msgspec.Struct):
    """What has been written so far."""

    sessions: int = 0
    requests: int = 0
    prompt_tokens: int = 0

    def add(self, session: Session) -> None:
        """Count a session."""
        self.sessions += 1
        self.requests += len(session.turns)
        self.prompt_tokens += sum(turn.input_tokens for turn in session.turns)


def session_lines(
    workload: Workload, tokenizer: Tokenizer, seed: Seed, count: int, sampled: Sampled
) -> Iterator[bytes]:
    """The first ``count`` sessions, a JSON line each, counted in ``sampled`` as they go by.

    Raises:
        WorkloadError: there is no session at all.
    """
    encoder = msgspec.json.Encoder()
    for session in itertools.islice(workload.sessions(tokenizer, seed), count):
        sampled.add(session)
        yield encoder.encode(session) + b"\n"
    if not sampled.sessions:
        raise WorkloadError("the workload has no session; look at its options, such as max_input_tokens")


def write_lines(lines: Iterable[bytes], path: Path) -> None:
    """Write lines to a file, whole or not at all; packed where its name ends in ``.gz``.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    write_atomic(path, _packed(lines) if path.suffix == ".gz" else lines)


def print_lines(lines: Iterable[bytes], out: BinaryIO) -> bool:
    """Print whole lines; False where the reader has closed its end, as ``head`` does."""
    try:
        out.writelines(lines)
        out.flush()
    except BrokenPipeError:
        # What Python would still flush at its exit has nowhere to go.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _packed(lines: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_GZIP)
    for line in lines:
        if packed := packer.compress(line):
            yield packed
    yield packer.flush()
