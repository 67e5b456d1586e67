"""What the engines of a run were set to, side by side, and in what they differ."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.records import EngineDescription
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, listed

_MAX_NAMED = 5
_SHA_DIGITS = 12
_SPECULATION = "speculation"
"""Compared as it was given, since each engine has names of its own for the methods."""


class SettingRow(msgspec.Struct, frozen=True):
    """One shared setting.

    Attributes:
        name: in the experiment file.
        texts: one per engine: the value that it reports, else the value that it was given, else the mark of absence.
        differs: whether two engines are known to have different values.
    """

    name: str
    texts: list[str]
    differs: bool


def starts_of(run: Run) -> dict[str, list[EngineDescription]]:
    """The descriptions of each engine, one per finished trial that has one."""
    starts: dict[str, list[EngineDescription]] = {engine: [] for engine in engines_of(run)}
    for trial in run.finished:
        if trial.record.engine_description is not None:
            starts[trial.record.engine].append(trial.record.engine_description)
    return starts


def setting_rows(run: Run) -> list[SettingRow]:
    """One row per setting that any engine reports or was given, and one for the weights."""
    descriptions = list(_described(run).values())
    names = dict.fromkeys(name for one in descriptions if one for name in (*one.settings, *one.asked))
    rows = [_row(name, [_value(one, name) for one in descriptions]) for name in names]
    weights = [one.model_sha256[:_SHA_DIGITS] if one and one.model_sha256 else None for one in descriptions]
    return [*rows, *([_row("weights, SHA-256", weights)] if any(weights) else [])]


def difference_text(run: Run) -> str | None:
    """``Set differently: dtype (float32 in a, bfloat16 in b). c does not report what it runs with.``; or None."""
    descriptions = _described(run)
    if len(descriptions) < 2:
        return None
    engines = list(descriptions)
    differing = [_named(row, engines) for row in setting_rows(run) if row.differs]
    more = f", {len(differing) - _MAX_NAMED} more under Engines" if len(differing) > _MAX_NAMED else ""
    known = any(one.settings or one.asked for one in descriptions.values() if one)  # older logs have neither
    silent = [name for name, one in descriptions.items() if known and one and not one.settings]
    clause = "does not report what it runs with" if len(silent) == 1 else "do not report what they run with"
    sentences = [
        f"Set differently: {'; '.join(differing[:_MAX_NAMED])}{more}." if differing else "",
        f"{listed(silent)} {clause}." if silent else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence) or None


def _described(run: Run) -> dict[str, EngineDescription | None]:
    """One description of each engine; not that of a trial from an older log, which has no settings, if it can be."""
    return {
        engine: next((one for one in starts if one.settings or one.asked), starts[0] if starts else None)
        for engine, starts in starts_of(run).items()
    }


def _row(name: str, values: Sequence[str | None]) -> SettingRow:
    known = {value for value in values if value is not None}
    return SettingRow(name, [ABSENT if value is None else value for value in values], differs=len(known) > 1)


def _value(description: EngineDescription | None, name: str) -> str | None:
    if description is None:
        return None
    value = description.settings.get(name, description.asked.get(name))
    match value:
        case None:  # an engine that is started without drafts has none
            return "none" if name == _SPECULATION and description.argv else None
        case dict():
            return " ".join(str(part) for part in value.values())
        case bool():
            return "yes" if value else "no"
        case float():  # engines write 0 and 0.0
            return f"{value:g}"
        case _:
            return str(value)


def _named(row: SettingRow, engines: Sequence[str]) -> str:
    having: dict[str, list[str]] = {}
    for engine, text in zip(engines, row.texts, strict=True):
        having.setdefault(text, []).append(engine)
    parts = (f"{text} in {listed(names)}" for text, names in having.items() if text != ABSENT)
    return f"{row.name} ({', '.join(parts)})"
