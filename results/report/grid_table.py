"""The best settings of a grid, and what each setting does, as tables."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.results.metric import Unit
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.run.grid import GridEffects, GridReport, Ranked
from bakeoff.results.show.terminal import terminal_table
from bakeoff.results.statistics.factorial import Effect
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, interval_text, percent_text, plain
from bakeoff.results.text.format import value_text as figure_text

MAX_RANKED = 10
EFFECTS_CAPTION = (
    "effect of a value: on the geometric mean over the others' values; of two settings: the largest beyond the sum of "
    "theirs, with an interval for all of the pair at once; 95 % intervals; share: part of the variation between "
    "combinations, noise included"
)
RANKED_CAPTION = (
    "each setting at its best load; =: cannot be told apart from the best, at 95 % for all settings together; expect: "
    "the best without the luck for which it was chosen of many"
)


def print_grid(report: GridReport, console: Console) -> None:
    """Print the best settings of each engine, then a table of effects for each metric."""
    for base in dict.fromkeys(ranked.base for ranked in report.ranking):
        console.print(_ranking(base, report))
    for base, metric in dict.fromkeys((each.base, each.metric) for each in report.effects):
        loads = [each for each in report.effects if (each.base, each.metric) == (base, metric)]
        known = [each for each in loads if each.effects]
        if known:
            console.print(_effects(base, metric, known))
        for each in loads:
            if why := why_text(each):
                console.print(Text(plain(why), "dim"))
    if any(each.effects for each in report.effects):
        console.print(Text(EFFECTS_CAPTION, "dim"))


def _ranking(base: str, report: GridReport) -> Table:
    own = [ranked for ranked in report.ranking if ranked.base == base]
    table = terminal_table(*(short_name(name) for name in own[0].values), "load")
    table.title = plain(f"Settings of {base} by {CATALOGUE[report.metric].title}, {len(own)} measured")
    table.title_justify = "left"
    for heading in (CATALOGUE[report.metric].title, "beside the best"):
        table.add_column(heading, justify="right", no_wrap=True)
    for ranked in own[:MAX_RANKED]:
        table.add_row(
            *(Text(plain(value_text(value))) for value in ranked.values.values()),
            Text(plain(ranked.load)),
            Text(interval_text(CATALOGUE[report.metric], ranked.value)),
            Text(behind_text(ranked, report.metric)),
        )
    table.caption, table.caption_justify = RANKED_CAPTION, "left"
    return table


def _effects(base: str, metric: str, loads: Sequence[GridEffects]) -> Table:
    table = terminal_table("setting", "value")
    table.title = plain(f"Effects of the settings of {base} on {CATALOGUE[metric].title}")
    table.title_justify = "left"
    for each in loads:
        table.add_column(plain(each.load), justify="right", no_wrap=True)
    for first, value, texts in effect_rows(metric, loads):
        table.add_row(Text(plain(first)), Text(plain(value)), *map(Text, texts))
    return table


def effect_rows(metric: str, loads: Sequence[GridEffects]) -> list[tuple[str, str, list[str]]]:
    """Setting, value and a text for each load: of each setting and pair first its share, then its effects.

    Args:
        metric: of all of them.
        loads: of one engine, with the same settings.
    """
    settings = loads[0].settings
    names, values = list(settings), list(settings.values())
    rows: list[tuple[str, str, list[str]]] = []
    seen: set[tuple[int, ...]] = set()
    for number, effect in enumerate(loads[0].effects):
        at_loads = [each.effects[number] for each in loads]
        if effect.factors not in seen:
            seen.add(effect.factors)
            title = " × ".join(short_name(names[factor]) for factor in effect.factors)
            rows.append((title, "share", [_share(each) for each in at_loads]))
        if len(effect.factors) == 1:
            rows.append(("", value_text(values[effect.factors[0]][effect.values[0]]), [
                effect_text(each, metric) for each in at_loads
            ]))  # fmt: skip
        else:  # the largest is another one at each load
            rows.append(("", "largest", [f"{_values(each, values)}: {effect_text(each, metric)}" for each in at_loads]))
    return rows


def effect_text(effect: Effect, metric: str) -> str:
    """``+3.1 % [+2.8, +3.4]``; of shares in percentage points."""
    is_share = CATALOGUE[metric].unit is Unit.SHARE
    sizes = [effect.size.centre, effect.size.low, effect.size.high]
    centre, low, high = (None if size is None else 100 * (size if is_share else math.expm1(size)) for size in sizes)
    unit = "pp" if is_share else "%"
    bounds = "" if low is None or high is None else f" [{_signed(low)}, {_signed(high)}]"
    return f"{_signed(centre or 0.0)} {unit}{bounds}"


def behind_text(ranked: Ranked, metric: str) -> str:
    """How far a setting lies behind the best: ``= 0.99 [0.97, 1.01]``."""
    if ranked.expected is not None:
        return f"expect {figure_text(CATALOGUE[metric].unit, ranked.expected)}"
    if ranked.behind is None:
        return ABSENT
    interval: Interval = ranked.behind
    mark = "= " if ranked.is_close else ""
    if CATALOGUE[metric].unit is Unit.SHARE:
        texts = [_signed(100 * (bound or 0.0)) for bound in (interval.centre, interval.low, interval.high)]
        return f"{mark}{texts[0]} pp [{texts[1]}, {texts[2]}]"
    return f"{mark}×{interval.centre:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def why_text(effects: GridEffects) -> str | None:
    """Why effects are unknown, with their place; None if they are known."""
    place = f"{effects.base}, {effects.load}, {CATALOGUE[effects.metric].title}"
    return f"{place}: {effects.reason}" if effects.reason else None


def short_name(setting: str) -> str:
    """``max_num_seqs`` of ``spec.max_num_seqs``."""
    return setting.rpartition(".")[2]


def value_text(value: Any) -> str:  # noqa: ANN401  (of a TOML file)
    """A value as in the file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(effect: Effect, values: Sequence[Sequence[Any]]) -> str:
    pairs = zip(effect.factors, effect.values, strict=True)
    return ", ".join(value_text(values[factor][value]) for factor, value in pairs)


def _share(effect: Effect) -> str:
    return ABSENT if effect.share is None else percent_text(effect.share)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
