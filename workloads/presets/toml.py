"""Write presets as TOML; the standard library only reads it."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bakeoff.workloads.presets import Preset

_WIDTH = 112
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_EXACT_FLOATS = 2**53


def preset_toml(preset: Preset, comments: Sequence[str] = ()) -> str:
    """A preset as TOML text; :func:`~bakeoff.workloads.presets.preset.preset_from` reads it back unchanged.

    Args:
        preset: its arrival options must not hold tuples, because TOML reads them back as lists.
        comments: comment lines at the top.

    Raises:
        ValueError: an option holds a value that TOML cannot express, such as None.
    """
    head = [f"# {''.join(filter(str.isprintable, comment))}" for comment in comments]
    return "\n".join([*head, *([""] if head else []), *_table((), msgspec.to_builtins(preset))]) + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """Values before tables, because everything after a table header belongs to that table."""
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
    if isinstance(value, Mapping):  # in a list of mixed values
        return f"{{ {', '.join(f'{_name((str(key),))} = {_value(item)}' for key, item in value.items())} }}"
    raise ValueError(f"TOML cannot express {value!r}")


def _float(value: float) -> str:
    """The shortest text that reads back as the same number; integers without a decimal point."""
    whole = math.isfinite(value) and value == int(value) and abs(value) < _EXACT_FLOATS
    return str(int(value)) if whole else repr(value)


def _text(value: str) -> str:
    """A TOML string: JSON escapes the same characters except DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
