"""Which workload the user means: a name, a trace, a preset's file, or sessions that were written down."""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engines.models import KNOWN_MODELS, cached
from harness.portraits.subject import Subject
from workloads import BadOption, BadTrace, NoTokenizer, Seed, Tokenizer, Workload, workload, workload_names
from workloads.portrait import SESSIONS, portrait
from workloads.presets import PresetTraffic
from workloads.traces.reading import opened

TRACE_SESSIONS = 20_000
"""Of a trace without words, which has no more than it has: a bound on prefix hits grows with what is looked at."""
_LOOKED_AT_BYTES = 2**16


class Chosen(msgspec.Struct, frozen=True):
    """A workload with what it was made of.

    Attributes:
        name: of the workload, as an experiment file would have it.
        target: what the user named.
        given: options as the user wrote them.
        shown: what to call it.
        options: as an experiment file would have them.
        made: the workload.
    """

    name: str
    target: str
    given: tuple[str, ...]
    shown: str
    options: dict[str, Any]
    made: Workload


def chosen(target: str, given: Sequence[str]) -> Chosen:
    """The workload that ``target`` names, or that replays the file or folder of that path.

    Args:
        target: name or path; a name wins.
        given: options as ``key=value``.

    Raises:
        UnknownWorkload: there is neither such a workload nor such a file.
        BadTrace: it is a path at which there is nothing.
        BadOption: an option cannot be read, is unknown or out of range.
    """
    options = options_of(given)
    if target not in workload_names():
        if _exists(target):
            return _replayed(target, given, options)
        if os.sep in target or Path(target).suffix:
            raise BadTrace(f"{target} does not exist; give a trace's path, or a name of: bakeoff workloads list")
    return Chosen(target, target, tuple(given), target, options, workload(target, options))


def subject_of(
    wanted: Chosen, seed: int, sessions: int | None, counter: tuple[Tokenizer, Path] | None = None
) -> Subject:
    """Draw a workload.

    Args:
        wanted: what to draw.
        seed: of the traffic.
        sessions: how many at most; None for 2,000, or 20,000 of a trace without words.
        counter: what counts the prompts that must be written.

    Raises:
        NoTokenizer: they must be, and there is none.
        WorkloadError: whatever is wrong with the workload or its file.
    """
    count = sessions or (TRACE_SESSIONS if wanted.name == "trace" and counter is None else SESSIONS)
    tokenizer, folder = counter or (None, None)
    made = wanted.made
    return Subject(
        portrait(wanted.shown, made, Seed.of(str(seed)), tokenizer=tokenizer, sessions=count),
        target=wanted.target,
        seed=seed,
        sessions=count,
        given=wanted.given,
        options=wanted.options,
        judged=not isinstance(made, PresetTraffic) or (made.scale == 1 and made.max_input_tokens is None),
        tokenizer=str(folder) if folder else None,
    )


def options_of(given: Sequence[str]) -> dict[str, Any]:
    """Options as data: values are TOML where they can be, else text.

    Raises:
        BadOption: one has no ``=``, or comes twice.
    """
    options: dict[str, Any] = {}
    for pair in given:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise BadOption(f"--option wants key=value, such as scale=0.25, not '{pair}'")
        if key.strip() in options:
            raise BadOption(f"--option {key.strip()} is given twice")
        options[key.strip()] = _value(text)
    return options


def tokenizer_at(folder: Path | None) -> tuple[Tokenizer, Path]:
    """The tokenizer in a folder, by default that of the model that was pulled; and its folder.

    Raises:
        NoTokenizer: there is none, or it cannot be read.
    """
    default = next(iter(KNOWN_MODELS))
    place = folder or cached(default)
    if place is None:
        raise NoTokenizer(
            "prompts are written for a model's tokenizer: give its folder with --tokenizer, "
            f"or fetch one with: bakeoff models pull {default}"
        )
    if not (place / "tokenizer.json").is_file():
        raise NoTokenizer(f"{place} holds no tokenizer.json; give a model's folder with --tokenizer")
    try:
        return Tokenizer(place), place
    except Exception as cause:  # the tokenizers library raises nothing more exact
        raise NoTokenizer(f"{place / 'tokenizer.json'} cannot be read: {cause}") from cause


def _value(text: str) -> Any:  # noqa: ANN401  (anything that TOML holds)
    try:
        data = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return data["value"] if len(data) == 1 else text


def _replayed(target: str, given: Sequence[str], options: dict[str, Any]) -> Chosen:
    if "path" in options:
        raise BadOption(f"{target} is a path already; leave out --option path={options['path']}")
    name, options = _kind(Path(target)), {"path": target, **options}
    return Chosen(name, target, tuple(given), Path(target).name or target, options, workload(name, options))


def _exists(target: str) -> bool:
    try:
        return Path(target).exists()
    except OSError:  # such as a name that is too long for a file
        return False


def _kind(path: Path) -> str:
    if path.suffix == ".toml":
        return "preset"
    return "sessions" if path.is_file() and _holds_sessions(path) else "trace"


def _holds_sessions(path: Path) -> bool:
    """Whether a file's first line looks like a session that ``bakeoff workloads sample`` wrote."""
    with opened(path) as file:
        head = file.read(_LOOKED_AT_BYTES).lstrip()
    return head.startswith(b'{"id":') and b'"turns":[{"input_tokens":' in head
