"""Read trace files in bounded memory: plain or gzip, by lines with row numbers as in an editor.

A gzip file of 10 MB can decompress to 10 GB, so decompression stops at a ratio far above that of real traces (mostly
below 20; prompts with a long shared prefix can reach 100).
"""

import gzip
import io
import itertools
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.traces.json_array import BYTE_ORDER_MARK

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
R = TypeVar("R")
Place = int | str | None
"""Position in a file: a row number from 1, a description, or None for the whole file."""
MAX_LINE_BYTES = 16 * 2**20
"""A longer line is not a request; usually the file has another format."""
MAX_WHOLE_BYTES = 128 * 2**20
"""Limit for files that are read in one piece, such as the JSON of one session."""
MAX_UNPACKED_RATIO = 100
"""Largest compression ratio of a gzip file that exceeds the limit for all files."""
MAX_UNPACKED_VARIABLE = "BAKEOFF_MAX_UNPACKED_MIB"
"""Environment variable: MiB that any gzip file may decompress to."""
_MAX_UNPACKED_MIB = 1
"""One block, so that a gzip bomb is refused before its first row is read."""
_BLOCK_BYTES = 2**20
SESSION_SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")
_GZIP_MAGIC = b"\x1f\x8b"
_DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


def bad(path: str | Path, place: Place, what: str) -> BadTrace:
    """A one-line error about a file.

    Args:
        path: the file.
        place: row number from 1, a description, or None for the whole file.
        what: the problem, and what to do about it.
    """
    at = f", row {place}" if isinstance(place, int) else f", {place}" if place else ""
    return BadTrace(" ".join(f"{path}{at}: {what}".splitlines()))


class _Unpacked(io.RawIOBase):
    """The decompressed bytes of a gzip file.

    Args:
        path: for error messages.
        file: the compressed bytes.

    Raises:
        BadTrace: on reading, if the compression ratio is too large.
    """

    def __init__(self, path: str | Path, file: io.BufferedReader) -> None:
        self._path = path
        self._file = file
        self._gzip = gzip.GzipFile(fileobj=file)
        self._free_bytes = _max_unpacked_mib() * 2**20
        self._unpacked_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        count = self._gzip.readinto(memoryview(buffer)[:_BLOCK_BYTES])
        self._unpacked_bytes += count
        if self._unpacked_bytes >= max(self._free_bytes, MAX_UNPACKED_RATIO * self._file.tell()):
            fix = f"if you trust it, decompress it first (gunzip) or set {MAX_UNPACKED_VARIABLE}"
            raise bad(self._path, None, f"decompresses to more than {MAX_UNPACKED_RATIO} times its size; {fix}")
        return count


def _max_unpacked_mib() -> int:
    text = os.environ.get(MAX_UNPACKED_VARIABLE, str(_MAX_UNPACKED_MIB))
    if not text.isdecimal():
        raise BadTrace(f"{MAX_UNPACKED_VARIABLE} must be a whole number of MiB, not {text!r}")
    return int(text)


@contextmanager
def opened(path: str | Path) -> Generator[io.BufferedIOBase]:
    """Open a file for reading, decompressing gzip.

    Raises:
        BadTrace: the file does not exist, is a folder, cannot be read, or its gzip data is damaged or decompresses to
            too much.
    """
    if Path(path).is_dir():
        raise bad(path, None, "is a folder; this format needs a file")
    try:
        with Path(path).open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            if Path(path).suffix == ".gz" and not packed:
                raise bad(path, None, "ends in .gz but is not gzip; fetch it again or rename it")
            yield io.BufferedReader(_Unpacked(path, file), _BLOCK_BYTES) if packed else file
    except FileNotFoundError:
        raise bad(path, None, "does not exist; give the path of the trace's file") from None
    except _DAMAGED_GZIP as cause:
        raise bad(path, None, _damage(cause)) from cause
    except OSError as cause:
        raise bad(path, None, f"cannot be read: {cause.strerror or cause}") from cause


def _damage(cause: Exception) -> str:
    return f"its gzip data is truncated or damaged ({cause}); fetch the file again"


def blocks(path: str, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines in blocks of about 1 MiB, with the number of the first; blank blocks are left out.

    Raises:
        BadTrace: as :func:`opened`; the file is empty, or a line is longer than ``max_line_bytes``.
    """
    row = 1
    with opened(path) as file:
        while True:
            try:
                block = file.read(_BLOCK_BYTES)
                if block and not block.endswith(b"\n"):
                    block += file.readline(max_line_bytes + 1)
            except _DAMAGED_GZIP as cause:
                raise bad(path, row, f"from about here {_damage(cause)}") from cause
            if not block:
                break
            last = block.rfind(b"\n", 0, -1)
            if len(block) - last - 1 > max_line_bytes:
                number = row + block.count(b"\n", 0, last + 1)
                raise bad(
                    path,
                    number,
                    f"is longer than {max_line_bytes // 2**20} MiB; the file must have one request or session a line",
                )
            if not block.isspace():  # otherwise megabytes of line ends would be processed one by one
                yield row, block.removeprefix(BYTE_ORDER_MARK) if row == 1 else block
            row += block.count(b"\n")
            if not block.endswith(b"\n"):
                row += 1
    if row == 1:
        raise bad(path, None, "is empty")


def check_text(path: str, row: int, block: bytes) -> None:
    """Raise BadTrace, with the row of the first bad byte, unless a block that begins with ``row`` is UTF-8 text."""
    nul = block.find(b"\0")
    if nul >= 0:
        number = row + block.count(b"\n", 0, nul)
        raise bad(path, number, "has a NUL byte; save it as text in UTF-8")
    if block.isascii():
        return
    try:
        block.decode()
    except UnicodeDecodeError as cause:
        number = row + block.count(b"\n", 0, cause.start)
        raise bad(path, number, f"is not UTF-8 (byte 0x{block[cause.start]:02x}); save the file as UTF-8") from None


def lines(path: str, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not blank, without line ends, each with its row number.

    Raises:
        BadTrace: as :func:`blocks`; a line is not UTF-8 text, or all are blank.
    """
    has_rows = False
    for first, block in blocks(path, max_line_bytes):
        check_text(path, first, block)
        for row, line in enumerate(block.split(b"\n"), first):
            if stripped := line.strip():
                has_rows = True
                yield row, stripped
    if not has_rows:
        raise bad(path, None, "has no rows")


def records(path: str, decoder: msgspec.json.Decoder[T]) -> Iterator[tuple[int, T]]:
    """Yield the objects of a file of JSON lines, each with its row number.

    Raises:
        BadTrace: as :func:`lines`; a line is not JSON, lacks a field, or has one of the wrong type or out of range.
    """
    for row, line in lines(path):
        yield row, decoded(path, row, line, decoder)


def each(
    path: str, decoder: msgspec.json.Decoder[T], convert: Callable[[int, T], R], *, is_lenient: bool = False
) -> Iterator[R]:
    """Yield what each line becomes, with its row number; ``is_lenient`` leaves out lines that cannot be read.

    Raises:
        BadTrace: a line is not JSON, or ``convert`` raises ValueError, whose text is the problem.
    """
    count, refused = 0, list[BadTrace]()
    for result in _each_or_why(path, decoder, convert):
        if not isinstance(result, BadTrace):
            count += 1
            yield result
        elif is_lenient:
            refused.append(result)
        else:
            raise (
                BadTrace(f"{result}; --option skip_bad=true leaves such lines out and counts them") if count else result
            )
    if refused and not count:
        raise bad(path, None, f"none of its {len(refused)} lines can be read; the first: {refused[0]}")


def left_out(
    name: str, path: str, decoder: msgspec.json.Decoder[T], convert: Callable[[int, T], object]
) -> Iterator[str]:
    """A note, with the format's name, on the lines that :func:`each` leaves out of a file, if there are any."""
    whys = [result for result in _each_or_why(path, decoder, convert) if isinstance(result, BadTrace)]
    if whys:
        yield f"{name}: {len(whys)} lines that cannot be read are left out; the first: {whys[0]}"


def _each_or_why(path: str, decoder: msgspec.json.Decoder[T], convert: Callable[[int, T], R]) -> Iterator[R | BadTrace]:
    for row, line in lines(path):
        try:
            result = convert(row, decoded(path, row, line, decoder))
        except BadTrace as problem:
            yield problem
        except ValueError as cause:
            yield bad(path, row, str(cause))
        else:
            yield result


def peeked(rows: Iterator[T], count: int) -> tuple[list[T], Iterator[T]]:
    """The first ``count`` rows, and all rows; a bad row among the first is refused only when it is reached."""
    head: list[T] = []
    refused: BadTrace | None = None
    try:
        for row in itertools.islice(rows, count):
            head.append(row)  # noqa: PERF402  (what came before a bad row is kept)
    except BadTrace as error:
        refused = error

    def all_rows() -> Iterator[T]:
        yield from head
        if refused is not None:
            raise refused
        yield from rows

    return head, all_rows()


def decoded(path: str | Path, place: Place, data: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode one JSON value.

    Raises:
        BadTrace: it is not JSON, lacks a field, or has one of the wrong type or out of range.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as cause:
        raise bad(path, place, str(cause)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise bad(path, place, f"is not valid JSON: {cause}") from None
    except RecursionError:
        raise bad(path, place, "is not a request; its JSON is nested too deeply") from None


def session_files(path: str) -> list[Path]:
    """The files of sessions in a folder, sorted by name, or the single file at ``path``.

    Raises:
        BadTrace: the folder has no such file, or nothing is at ``path``.
    """
    place = Path(path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise bad(path, None, "does not exist; give a folder of session files, or one of them")
    files = sorted(file for file in place.iterdir() if file.name.endswith(SESSION_SUFFIXES))
    if not files:
        raise bad(path, None, f"has no session files ({', '.join(f'*{suffix}' for suffix in SESSION_SUFFIXES)})")
    return files


def whole(path: str | Path) -> bytes:
    """All bytes of a file of at most ``MAX_WHOLE_BYTES``, decompressing gzip.

    Raises:
        BadTrace: as :func:`opened`; the file is empty or larger.
    """
    with opened(path) as file:
        data = file.read(MAX_WHOLE_BYTES + 1)
    if not data.strip():
        raise bad(path, None, "is empty")
    if len(data) > MAX_WHOLE_BYTES:
        raise bad(
            path,
            None,
            f"is larger than {MAX_WHOLE_BYTES // 2**20} MiB, too large for the file of one session or client",
        )
    return data.removeprefix(BYTE_ORDER_MARK)


def documents(file: Path, decoder: msgspec.json.Decoder[T]) -> Iterator[tuple[int | None, T]]:
    """The objects of a file that holds one, or one a line; each with its row if it has one a line.

    Raises:
        BadTrace: as :func:`lines` and :func:`whole`; an object is not what the decoder expects.
    """
    with opened(file) as data:
        is_object_per_line = data.readline(MAX_WHOLE_BYTES + 1).rstrip().endswith(b"}") and data.read(1)
    if is_object_per_line:
        for row, line in lines(str(file), MAX_WHOLE_BYTES):
            yield row, decoded(file, row, line, decoder)
    else:
        yield None, decoded(file, None, whole(file), decoder)
