"""Presets as TOML, for which the standard library has a reader only."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from workloads.presets import Preset

_WIDTH = 112
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_EXACT_FLOATS = 2**53


def preset_toml(preset: Preset, comments: Sequence[str] = ()) -> str:
    """A preset as a file that :func:`~workloads.presets.preset.preset_from` reads back as it was.

    Args:
        preset: whose options, where they hold lists, hold no tuples, as those of a file do not.
        comments: lines for the file's head.

    Raises:
        ValueError: an option holds what TOML has no form for, such as None.
    """
    head = [f"# {''.join(filter(str.isprintable, comment))}" for comment in comments]
    return "\n".join([*head, *([""] if head else []), *_table((), msgspec.to_builtins(preset))]) + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """Values first, since everything behind a header belongs to it; then tables and arrays of tables."""
    for key, value in table.items():
        if not _is_table(value) and not _is_tables(value):
            yield from _entry(key, value)
    for key, value in table.items():
        inner = (*path, key)
        if _is_table(value):
            yield from ("", f"[{_name(inner)}]", *_table(inner, value))
        elif _is_tables(value):
            for item in value:
                yield from ("", f"[[{_name(inner)}]]", *_table(inner, item))


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_is_table, value))


def _name(path: tuple[str, ...]) -> str:
    return ".".join(key if _BARE_KEY.fullmatch(key) else _text(key) for key in path)


def _entry(key: str, value: object) -> Iterator[str]:
    line = f"{_name((key,))} = {_value(value)}"
    if len(line) <= _WIDTH or not isinstance(value, (list, tuple)):
        yield line
        return
    yield f"{_name((key,))} = ["
    row = " "
    for item in map(_value, value):
        if len(row) + len(item) + 2 > _WIDTH:
            yield row
            row = " "
        row += f" {item},"
    yield from (row, "]")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):  # inside a list that holds other things too
        return f"{{ {', '.join(f'{_name((str(key),))} = {_value(item)}' for key, item in value.items())} }}"
    raise ValueError(f"TOML has no form for {value!r}")


def _float(value: float) -> str:
    """The shortest that reads back as the same number; whole ones without a point, as a person writes them."""
    whole = math.isfinite(value) and value == int(value) and abs(value) < _EXACT_FLOATS
    return str(int(value)) if whole else repr(value)


def _text(value: str) -> str:
    """JSON's escapes are TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
