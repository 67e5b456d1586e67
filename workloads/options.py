"""Typed options from untyped data: one rule for files and flags, with the nearest valid name in each complaint."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'chat'? known: chat, random``, the first half only when something is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}known: {', '.join(names)}"


def typed_options(kind: type[S], options: Mapping[str, Any], owner: str, error: type[Exception]) -> S:
    """Convert ``options`` into ``kind``, nested structs included.

    Args:
        kind: a struct whose fields are the options.
        options: as read from a file.
        owner: what has these options, for the message: ``workload 'chat'``.
        error: raised, with one line, for an unknown name, a wrong type or a value out of range.
    """
    _check_names(kind, options, owner, error)
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as cause:
        raise error(f"{owner}: {cause}") from cause


def _check_names(kind: type[msgspec.Struct], data: Mapping[str, Any], owner: str, error: type[Exception]) -> None:
    hints = get_type_hints(kind)
    for name, value in data.items():
        if name not in hints:
            raise error(f"{owner} has no option '{name}'; {nearest(name, kind.__struct_fields__)}")
        inner = _struct_in(hints[name])
        if inner is None:
            continue
        for i, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, Mapping):
                place = f"{name}[{i}]" if isinstance(value, list) else name
                _check_names(inner, item, f"{owner}: {place}", error)


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:  # noqa: ANN401  (any annotation)
    """The struct inside ``Struct``, ``Struct | None`` or ``list[Struct]``."""
    for candidate in (hint, *get_args(hint)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None
