"""Typed options from untyped data, for files and flags alike; error messages suggest the nearest valid name."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'chat'? known: chat, random``; without the question if no name is similar."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}known: {', '.join(names)}"


def check_scale(scale: float) -> None:
    """Check a factor on lengths.

    Raises:
        ValueError: ``scale`` is not above 0, or is above 16.
    """
    if not 0 < scale <= 16:
        raise ValueError(f"scale must be above 0 and at most 16, not {scale}")


def typed_options(kind: type[S], options: Mapping[str, Any], owner: str, error: type[Exception]) -> S:
    """Convert ``options`` into ``kind``, nested structs included.

    Args:
        kind: a struct whose fields are the options.
        options: as read from a file.
        owner: what the options belong to, for messages: ``workload 'chat'``.
        error: raised with a one-line message for an unknown name, a wrong type or a value out of range.
    """
    _check_names(kind, options, owner, error)
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as cause:
        raise error(f"{owner}: {cause}") from cause


def parsed_toml(text: str, owner: str, kind: str, error: type[Exception]) -> dict[str, Any]:
    """Parse TOML.

    Args:
        text: to parse.
        owner: names it in messages.
        kind: what it is to be, such as ``a preset``.
        error: to raise if it cannot be parsed.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise error(f"{owner} is not TOML: {cause}") from cause
    except RecursionError as cause:
        raise error(f"{owner} is nested too deeply to be {kind}") from cause


def _check_names(kind: type[msgspec.Struct], data: Mapping[str, Any], owner: str, error: type[Exception]) -> None:
    hints = get_type_hints(kind)
    attributes = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    for name, value in data.items():
        if name == kind.__struct_config__.tag_field:
            continue
        if name not in attributes:
            raise error(f"{owner} has no option '{name}'; {nearest(name, attributes)}")
        candidates = _structs_in(hints[attributes[name]])
        for i, item in enumerate(value if isinstance(value, list) else [value]):
            if candidates and isinstance(item, Mapping):
                place = f"{owner}: {name}[{i}]" if isinstance(value, list) else f"{owner}: {name}"
                _check_names(_matching_struct(candidates, item, place, error), item, place, error)


def _structs_in(hint: Any) -> list[type[msgspec.Struct]]:  # noqa: ANN401  (any annotation)
    """The structs in an annotation: ``Struct``, ``Struct | None``, ``list[Struct]`` or a union of them."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [struct for inner in get_args(hint) for struct in _structs_in(inner)]


def _matching_struct(
    candidates: list[type[msgspec.Struct]], data: Mapping[str, Any], place: str, error: type[Exception]
) -> type[msgspec.Struct]:
    """The struct that ``data`` describes; among several, by its tag."""
    if len(candidates) == 1:
        return candidates[0]
    field = candidates[0].__struct_config__.tag_field or "type"
    by_tag = {str(candidate.__struct_config__.tag): candidate for candidate in candidates}
    tag = data.get(field)
    if tag not in by_tag:
        raise error(f"{place} needs {field}, one of {', '.join(by_tag)}, not {tag!r}")
    return by_tag[str(tag)]
