"""The form of stored files: its number, and how files of earlier forms are read.

A field that is added with a default needs no new schema: files without it are read, and earlier versions of Bakeoff
ignore it. Any other change makes a new schema, with functions here that turn a record of the one before into one of it.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from bakeoff.results.errors import UNDECODABLE, RunUnreadable

R = TypeVar("R")

SCHEMA_VERSION = 3
OLDEST_SCHEMA = 3
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
_NUMBER_AND_EXTENSION = re.compile(r"(-\d+)?\..*")
UPGRADES: dict[int, Mapping[str, Upgrade]] = {}
"""By schema, and by kind of records: what makes a record of the next schema of one, as JSON's or msgpack's values.

Kinds are the names of a run's files without numbers and extension (``run``, ``streams``, ``telemetry``, ``requests``,
``steps``, ``front-end``, ``spans``, ``recount``, ``quality``, ``step-costs``), and ``export`` for files of
``export --as pytest-benchmark``.
"""


def schema_problem(version: int) -> str | None:
    """Why a file of that schema cannot be read, and what to do; None if it can."""
    if OLDEST_SCHEMA <= version <= SCHEMA_VERSION:
        return None
    fix = "update bakeoff" if version > SCHEMA_VERSION else "measure again"
    read = f"{SCHEMA_VERSION} only" if OLDEST_SCHEMA == SCHEMA_VERSION else f"{OLDEST_SCHEMA} to {SCHEMA_VERSION}"
    return f"has schema {version}, and this version of bakeoff reads schema {read}; {fix}"


def decoder_of(
    record: type[R], path: Path, schema: int | None, codec: ModuleType = msgspec.json
) -> Callable[[bytes], R]:
    """What decodes the records of a file, after turning those of an earlier schema into today's.

    Args:
        record: the records' type.
        path: the file's.
        schema: the file's; None for today's.
        codec: ``msgspec.json`` or ``msgspec.msgpack``.

    Returns:
        a function of a record's bytes, which raises ``msgspec.DecodeError`` if they are none.
    """
    if schema is None:
        schema = SCHEMA_VERSION
    kind = _NUMBER_AND_EXTENSION.sub("", path.name)
    steps = [UPGRADES[version][kind] for version in range(schema, SCHEMA_VERSION) if kind in UPGRADES.get(version, {})]
    if not steps:
        return codec.Decoder(record).decode

    def decode(data: bytes) -> R:
        value = codec.decode(data)
        try:
            for step in steps:
                value = step(value)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise msgspec.ValidationError(f"{type(error).__name__}: {error}") from error
        return msgspec.convert(value, record)

    return decode


def schema_of_run(path: Path) -> int:
    """The schema of a log, and of its run's files; today's if not even the first line is whole.

    Raises:
        OSError, RunUnreadable: it cannot be read, or has a schema that cannot be.
    """
    with path.open("rb") as file:
        first = file.readline()
    return schema_of(path, first) if first.endswith(b"\n") else SCHEMA_VERSION


class _Versioned(msgspec.Struct):
    """The field that is read first, because it determines the format of the others."""

    schema_version: int = 0


def schema_of(path: Path, data: bytes) -> int:
    """The schema of a record, before its fields are decoded.

    Args:
        path: where it is stored.
        data: JSON.

    Raises:
        RunUnreadable: it is no record, or has a schema that cannot be read.
    """
    try:
        schema = msgspec.json.decode(data, type=_Versioned).schema_version
    except UNDECODABLE as error:
        raise RunUnreadable(f"{path} cannot be read ({error}); restore it from a copy") from error
    if problem := schema_problem(schema):
        raise RunUnreadable(f"{path} {problem}")
    return schema
