"""JSON values as servers send them: a field of another type than documented is absent, so that it fails no answer."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:  # noqa: ANN401  (any JSON value)
    """The object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> Sequence[Any]:  # noqa: ANN401
    """The list; an empty one for any other value."""
    return value if isinstance(value, list) else ()


def text(value: Any) -> str:  # noqa: ANN401
    """The string; an empty one for any other value."""
    return value if isinstance(value, str) else ""


def count(value: Any) -> int | None:  # noqa: ANN401
    """A whole number, also as 20.0 or "20"; None for any other value."""
    if isinstance(value, str):
        value = value.strip()
        return int(value) if value.isascii() and value.removeprefix("-").isdigit() and len(value) < 20 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) else int(value) if value.is_integer() else None


def number(value: Any) -> float | None:  # noqa: ANN401
    """A number that a float can hold; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


@functools.cache
def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def first_count(value: Mapping[str, Any], *paths: str) -> int | None:
    """The first of several counts that is there.

    Args:
        value: the object.
        paths: names of fields; a dot leads into an object.
    """
    for path in paths:
        *outer, name = _parts(path)
        holder = value
        for part in outer:
            holder = mapping(holder.get(part))
        if (found := count(holder.get(name))) is not None:
            return found
    return None
