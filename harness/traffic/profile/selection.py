"""Find the workload that the user names (a name, a trace, a preset's file, or recorded sessions) and profile it."""

import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.engines.models import KNOWN_MODELS, cached
from bakeoff.workloads import (
    BadOption,
    BadTrace,
    NoTokenizer,
    Seed,
    Tokenizer,
    Workload,
    approximate,
    workload,
    workload_names,
)
from bakeoff.workloads.profile import SESSIONS, WorkloadProfile, profile_workload
from bakeoff.workloads.sample import holds_sessions
from bakeoff.workloads.traces.formats import detect, format_options
from bakeoff.workloads.traces.replay import Replay

TRACE_SESSIONS = 20_000
"""Default sample of a trace of lengths: large, as the prefix bound grows with the sample and no text is written."""


class Selection(msgspec.Struct, frozen=True):
    """A workload and where it came from.

    Attributes:
        name: workload name in an experiment file.
        target: name or path that the user gave.
        option_texts: options as the user wrote them.
        label: name to show.
        options: options in an experiment file.
        workload: the workload itself.
    """

    name: str
    target: str
    option_texts: tuple[str, ...]
    label: str
    options: dict[str, Any]
    workload: Workload


class ShownProfile(WorkloadProfile, frozen=True, kw_only=True):
    """A profile with everything that reproduces it; ``bakeoff workloads show --json`` prints it as it is.

    Attributes:
        target: name or path that the user gave.
        seed: of the sample.
        max_sessions: upper limit on the sample.
        option_texts: options as the user wrote them.
        options: options in an experiment file.
        tokenizer: folder of the tokenizer that counted the prompts; None if prompts were not written.
    """

    target: str
    seed: int
    max_sessions: int
    option_texts: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    tokenizer: str | None = None

    @property
    def command(self) -> str:
        """The command that draws the same sample again."""
        options = [argument for text in self.option_texts for argument in ("--option", text)]
        tokenizer = ["--tokenizer", self.tokenizer] if self.tokenizer else []
        sample = ["--seed", str(self.seed), "--sessions", str(self.max_sessions)]
        return f"bakeoff workloads show {shlex.join([self.target, *options, *sample, *tokenizer])}"


def select(target: str, option_texts: Sequence[str]) -> Selection:
    """The workload named ``target``, or a replay of the file or folder at that path.

    Args:
        target: name or path; a name takes precedence.
        option_texts: options as ``key=value``.

    Raises:
        UnknownWorkload: there is neither a workload of that name nor a file.
        BadTrace: ``target`` is a path at which there is nothing.
        BadOption: an option cannot be parsed, is unknown or out of range.
    """
    options = parse_options(option_texts)
    if target not in workload_names():
        if _exists(target):
            return _replay(target, option_texts, options)
        if os.sep in target or Path(target).suffix:
            raise BadTrace(f"{target} does not exist; give a trace's path, or a name from: bakeoff workloads list")
    return Selection(target, target, tuple(option_texts), target, options, workload(target, options))


def profile_selection(
    selection: Selection, seed: int, sessions: int | None, tokenizer_folder: tuple[Tokenizer, Path] | None = None
) -> ShownProfile:
    """Profile a workload.

    Args:
        selection: the workload.
        seed: of the sample.
        sessions: upper limit on the sample; None for 2,000, or 20,000 of a trace of lengths.
        tokenizer_folder: tokenizer for prompts that must be written, and its folder.

    Raises:
        NoTokenizer: prompts must be written and there is no tokenizer.
        WorkloadError: something is wrong with the workload or its file.
    """
    lengths_only = selection.name == "trace" and tokenizer_folder is None
    max_sessions = sessions or (TRACE_SESSIONS if lengths_only else SESSIONS)
    tokenizer, folder = tokenizer_folder or (None, None)
    profile = profile_workload(
        selection.label, selection.workload, Seed.of(str(seed)), tokenizer=tokenizer, sessions=max_sessions
    )
    return ShownProfile(
        **msgspec.structs.asdict(profile),
        target=selection.target,
        seed=seed,
        max_sessions=max_sessions,
        option_texts=selection.option_texts,
        options=selection.options,
        tokenizer=str(folder) if folder else None,
    )


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` options; a value that is not TOML is text.

    Raises:
        BadOption: an option has no ``=``, or is given twice.
    """
    options: dict[str, Any] = {}
    for option in texts:
        key, equals, text = option.partition("=")
        if not equals or not key.strip():
            raise BadOption(f"--option needs key=value, such as scale=0.25, not '{option}'")
        if key.strip() in options:
            raise BadOption(f"--option {key.strip()} is given twice; leave one of them out")
        options[key.strip()] = _value(text)
    return options


def tokenizer_at(folder: Path | None) -> tuple[Tokenizer, Path]:
    """The tokenizer in a folder, or the one named ``approximate``, by default that of the pulled model; and the folder.

    Raises:
        NoTokenizer: there is none.
        BadTokenizer: it cannot be read.
    """
    default = next(iter(KNOWN_MODELS))
    place = folder or cached(default)
    if place is None:
        raise NoTokenizer(
            "prompts are written for one model's tokenizer: give its folder with --tokenizer, or 'approximate', "
            f"or fetch a model with: bakeoff models pull {default}"
        )
    return approximate.tokenizer_at(str(place)), place


def _value(text: str) -> Any:  # noqa: ANN401  (any TOML value)
    try:
        data = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return data["value"] if len(data) == 1 else text


def _replay(target: str, option_texts: Sequence[str], options: dict[str, Any]) -> Selection:
    if "path" in options:
        raise BadOption(f"{target} is already a path; leave out --option path={options['path']}")
    path = Path(target)
    name = _workload_name(path)
    options = {"path": target, **(_with_format_options(target, options) if name == "trace" else options)}
    return Selection(name, target, tuple(option_texts), path.name or target, options, workload(name, options))


def _with_format_options(target: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a replay, where those that only its format has are moved to ``format_options``."""
    own = {name for name in options if name not in Replay.__struct_fields__}
    if not own:
        return options
    name = str(options.get("format") or detect(target))
    known = format_options(name)
    if "skip_bad" in own and "skip_bad" not in known:
        raise BadOption(f"format '{name}' cannot leave out lines: correct the file, or leave skip_bad out")
    moved = {name: options[name] for name in own if name in known}
    kept = {name: value for name, value in options.items() if name not in moved}
    return {**kept, "format_options": {**kept.get("format_options", {}), **moved}} if moved else options


def _exists(target: str) -> bool:
    try:
        return Path(target).exists()
    except OSError:  # a name that is too long for a file
        return False


def _workload_name(path: Path) -> str:
    if path.suffix == ".toml":
        return "preset"
    return "sessions" if path.is_file() and holds_sessions(path) else "trace"
