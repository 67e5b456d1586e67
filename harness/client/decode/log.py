"""Decodes the raw log of a trial once its load has ended; ``python -m`` this module is a process that decodes parts.

A request takes a third of a millisecond, so a million of them would keep one core for minutes. A long log is cut into
parts of whole frames, which the machine's cores decode into files, and the nodes of a cluster whose workers have
nothing else to do; these become the requests of the trial, one after another. This process only joins them: no record
passes through it.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Protocol, runtime_checkable

import msgspec

from bakeoff.engines.dialects import Dialect
from bakeoff.engines.secrets import conceal, known
from bakeoff.harness.client.decode.exchange import decode_stream
from bakeoff.harness.client.wire.orders import Format
from bakeoff.harness.host.child import child_process, read_line, send
from bakeoff.results.errors import NotWritable, RunUnreadable
from bakeoff.results.files.frames import FrameLog
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import StreamRecord
from bakeoff.workloads import Tokenizer, WorkloadError

PART_BYTES = 16 << 20
"""Part of a log that one process decodes at a time, in about two seconds."""
MIN_PARTS = 4
"""A log with fewer parts is decoded here: a process takes a second to start."""


class Setup(msgspec.Struct, frozen=True):
    """The first line to a process that decodes.

    Attributes:
        format: wire format of the answers.
        tokenizer: folder of the model's; None if tokens need not or cannot be counted.
        secrets: to mask in the texts of answers.
    """

    format: Format
    tokenizer: str | None
    secrets: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """Whole frames of a log, and the file for their requests."""

    log: str
    start: int
    end: int
    out: str
    schema: int | None = None


class Decoded(msgspec.Struct, frozen=True):
    """The reply: the part's requests are in its file."""


@runtime_checkable
class Decoder(Protocol):
    """A node that decodes parts, while it has no load."""

    async def decode(self, setup: bytes, frames: bytes) -> bytes | None:
        """The result of :func:`decoded_lines`; None also if the node is lost."""
        ...


async def decode_log(
    folder: TrialFolder,
    dialect: Dialect,
    tokenizer: Tokenizer | None,
    format: Format,  # noqa: A002  (as in an order)
    *,
    in_thread: Callable[..., Awaitable[Any]],
    cores: int,
    nodes: Sequence[Decoder] = (),
    part_bytes: int = PART_BYTES,
) -> None:
    """Decode every exchange of a trial and store the requests in its folder, in the order of the log.

    Args:
        folder: of the trial.
        dialect: of the engine.
        tokenizer: the model's, if its counts are exact.
        format: from which another process makes the dialect.
        in_thread: runs a blocking function off the event loop.
        cores: most processes at a time.
        nodes: decode parts, too.
        part_bytes: see :data:`PART_BYTES`.

    Raises:
        RunUnreadable: the log is damaged.
        NotWritable: the folder cannot be written.
    """
    logs = folder.stream_logs()
    ranges = [(log, start, end) for log in logs for start, end in await in_thread(log.ranges, part_bytes)]
    processes = min(cores, len(ranges))
    if len(ranges) < MIN_PARTS or processes + len(nodes) < 2 or type(tokenizer) not in {Tokenizer, type(None)}:
        await in_thread(_here, folder, dialect, tokenizer)
        return
    outs = [folder.decoded_part(number) for number in range(len(ranges))]
    parts = [
        Part(str(log.path), start, end, str(out), log.schema)
        for (log, start, end), out in zip(ranges, outs, strict=True)
    ]
    setup = Setup(format, None if tokenizer is None else str(tokenizer.folder), tuple(known()))
    waiting = iter(parts)
    try:
        async with asyncio.TaskGroup() as group:  # ends them all before their files are removed
            tasks = [group.create_task(_by_process(setup, waiting)) for _ in range(processes)]
            tasks += [group.create_task(_by_node(node, setup, waiting, in_thread)) for node in nodes]
        left = [part for task in tasks if (part := task.result()) is not None]
        for part in (*waiting, *left):  # whatever stopped a process is met again here
            await in_thread(decode_part, part, dialect, tokenizer)
        await in_thread(folder.join_requests, outs)
    finally:
        folder.remove_parts()


def decode_part(part: Part, dialect: Dialect, tokenizer: Tokenizer | None) -> None:
    """Decode some frames of a log into a file of JSON lines.

    Raises:
        RunUnreadable: the log is damaged.
        NotWritable: the file cannot be written.
    """
    encode = msgspec.json.Encoder().encode
    frames = FrameLog(Path(part.log), StreamRecord, schema=part.schema).between(part.start, part.end)
    try:
        with Path(part.out).open("wb") as file:
            file.writelines(encode(decode_stream(stream, dialect, tokenizer)) + b"\n" for stream in frames)
    except OSError as error:
        raise NotWritable(f"cannot write {part.out}: {error.strerror}") from error


def _here(folder: TrialFolder, dialect: Dialect, tokenizer: Tokenizer | None) -> None:
    folder.write_requests(decode_stream(stream, dialect, tokenizer) for stream in folder.read_streams())


async def _by_process(setup: Setup, waiting: Iterator[Part]) -> Part | None:
    """Decode parts in a process while there are any; the part at which it ended, None if it has done all it took."""
    taken: Part | None = None
    try:
        async with child_process(__name__, stderr=DEVNULL, stop_s=0.0) as process:  # amid a part, nobody waits for it
            await send(process, setup)
            for part in waiting:
                taken = part
                await send(process, part)
                if not await read_line(process):
                    return part
                taken = None
    except OSError:  # no process could be started: too many of them, or too little memory
        return taken
    return None


async def _by_node(
    node: Decoder, setup: Setup, waiting: Iterator[Part], in_thread: Callable[..., Awaitable[Any]]
) -> Part | None:
    """As :func:`_by_process`, on a node."""
    encoded = msgspec.json.encode(setup)
    for part in waiting:
        lines = await node.decode(encoded, await in_thread(_frames_of, part))
        if lines is None:
            return part
        await in_thread(Path(part.out).write_bytes, lines)
    return None


def _frames_of(part: Part) -> bytes:
    with Path(part.log).open("rb") as file:
        file.seek(part.start)
        return file.read(part.end - part.start)


def decoded_lines(setup: bytes, frames: bytes) -> bytes | None:
    """Decode whole frames into JSON lines; None if this machine cannot, as without the tokenizer, or they are damaged.

    Args:
        setup: a :class:`Setup` as JSON.
        frames: of a log.
    """
    given = msgspec.json.decode(setup, type=Setup)
    conceal(*given.secrets)
    dialect = given.format.dialect()
    if dialect is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
        log, out = Path(scratch, "log"), Path(scratch, "out")
        log.write_bytes(frames)
        try:
            tokenizer = None if given.tokenizer is None else Tokenizer(Path(given.tokenizer))
            decode_part(Part(str(log), 0, len(frames), str(out)), dialect, tokenizer)
        except (NotWritable, RunUnreadable, WorkloadError):  # the harness meets it again where it can say so
            return None
        return out.read_bytes()


def main() -> None:
    """Decode the parts that the lines of stdin name, until it closes."""
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setup)
    conceal(*setup.secrets)
    dialect = setup.format.dialect()
    if dialect is None:
        return
    tokenizer = None if setup.tokenizer is None else Tokenizer(Path(setup.tokenizer))
    for line in sys.stdin.buffer:
        decode_part(msgspec.json.decode(line, type=Part), dialect, tokenizer)
        sys.stdout.buffer.write(msgspec.json.encode(Decoded()) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
