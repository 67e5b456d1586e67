"""The best settings of a grid, and what each setting does, as tables."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from bakeoff.results.metric import Unit
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.run.grid import GridEffects, GridReport, Ranked
from bakeoff.results.show.table import Cell, Table, figures, names
from bakeoff.results.show.terminal import print_table
from bakeoff.results.statistics.factorial import Effect
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, interval_text, percent_text, plain, value_text

_MAX_RANKED = 10
_EFFECTS_NOTE = (
    "effect of a value: on the geometric mean over the others' values; of two settings: the largest beyond the sum of "
    "theirs, with an interval for all of the pair at once; 95 % intervals; share: part of the variation between "
    "combinations, noise included"
)
_RANKED_NOTE = (
    "each setting at its best load; =: cannot be told apart from the best, at 95 % for all settings together; expect: "
    "the best without the luck for which it was chosen of many"
)


def print_grid(report: GridReport, console: Console) -> None:
    """Print the best settings of each engine, then a table of effects for each metric."""
    for table in grid_tables(report):
        print_table(table, console)
    for note in grid_notes(report):
        console.print(Text(plain(note), "dim"))


def grid_tables(report: GridReport) -> list[Table]:
    """The best settings of each engine, then the effects on each metric that are known."""
    bases = dict.fromkeys(ranked.base for ranked in report.ranking)
    known = [each for each in report.effects if each.effects]
    effects = dict.fromkeys((each.base, each.metric) for each in known)
    return [
        *(_ranking(base, report) for base in bases),
        *(_effects([each for each in known if (each.base, each.metric) == of]) for of in effects),
    ]


def grid_notes(report: GridReport) -> list[str]:
    """What the tables of effects show, and why effects are unknown, with their place."""
    whys = [
        f"{each.base}, {each.load}, {CATALOGUE[each.metric].title}: {each.reason}"
        for each in report.effects
        if each.reason
    ]
    return [*whys, *([_EFFECTS_NOTE] if any(each.effects for each in report.effects) else [])]


def _ranking(base: str, report: GridReport) -> Table:
    own = [ranked for ranked in report.ranking if ranked.base == base]
    metric = CATALOGUE[report.metric]
    return Table(
        f"Settings of {base} by {metric.title}",
        [*names(*map(_short_name, own[0].values), "load"), *figures([metric.title, "beside the best"])],
        [
            [
                *(Cell(_value_text(value)) for value in ranked.values.values()),
                *(Cell(ranked.load), Cell(interval_text(metric, ranked.value)), Cell(_behind(ranked, report.metric))),
            ]
            for ranked in own[:_MAX_RANKED]
        ],
        title=f"Settings of {base} by {metric.title}, {len(own)} measured",
        notes=[_RANKED_NOTE],
    )


def _effects(loads: Sequence[GridEffects]) -> Table:
    """Of each setting and pair first its share, then its effects, at each load of one engine.

    Args:
        loads: of one engine and metric, with the same settings.
    """
    title = f"Effects of the settings of {loads[0].base} on {CATALOGUE[loads[0].metric].title}"
    settings, values, metric = list(loads[0].settings), list(loads[0].settings.values()), loads[0].metric
    rows: list[tuple[str, str, list[str]]] = []
    seen: set[tuple[int, ...]] = set()
    for number, effect in enumerate(loads[0].effects):
        at_loads = [each.effects[number] for each in loads]
        if effect.factors not in seen:
            seen.add(effect.factors)
            pair = " × ".join(_short_name(settings[factor]) for factor in effect.factors)
            rows.append((pair, "share", [_share(each) for each in at_loads]))
        if len(effect.factors) == 1:
            value = _value_text(values[effect.factors[0]][effect.values[0]])
            rows.append(("", value, [effect_text(each, metric) for each in at_loads]))
        else:  # the largest is another one at each load
            texts = [f"{_values(each, values)}: {effect_text(each, metric)}" for each in at_loads]
            rows.append(("", "largest", texts))
    return Table(
        title,
        [*names("setting", "value"), *figures([each.load for each in loads])],
        [[Cell(first), Cell(value), *map(Cell, texts)] for first, value, texts in rows],
        title=title,
    )


def effect_text(effect: Effect, metric: str) -> str:
    """``+3.1 % [+2.8, +3.4]``; of shares in percentage points."""
    is_share = CATALOGUE[metric].unit is Unit.SHARE
    sizes = [effect.size.centre, effect.size.low, effect.size.high]
    centre, low, high = (None if size is None else 100 * (size if is_share else math.expm1(size)) for size in sizes)
    unit = "pp" if is_share else "%"
    bounds = "" if low is None or high is None else f" [{_signed(low)}, {_signed(high)}]"
    return f"{_signed(centre or 0.0)} {unit}{bounds}"


def _behind(ranked: Ranked, metric: str) -> str:
    """How far a setting lies behind the best: ``= 0.99 [0.97, 1.01]``."""
    if ranked.expected is not None:
        return f"expect {value_text(CATALOGUE[metric].unit, ranked.expected)}"
    if ranked.behind is None:
        return ABSENT
    interval: Interval = ranked.behind
    mark = "= " if ranked.is_close else ""
    if CATALOGUE[metric].unit is Unit.SHARE:
        texts = [_signed(100 * (bound or 0.0)) for bound in (interval.centre, interval.low, interval.high)]
        return f"{mark}{texts[0]} pp [{texts[1]}, {texts[2]}]"
    return f"{mark}×{interval.centre:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _short_name(setting: str) -> str:
    """``max_num_seqs`` of ``spec.max_num_seqs``."""
    return setting.rpartition(".")[2]


def _value_text(value: Any) -> str:  # noqa: ANN401  (of a TOML file)
    """A value as in the file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(effect: Effect, values: Sequence[Sequence[Any]]) -> str:
    pairs = zip(effect.factors, effect.values, strict=True)
    return ", ".join(_value_text(values[factor][value]) for factor, value in pairs)


def _share(effect: Effect) -> str:
    return ABSENT if effect.share is None else percent_text(effect.share)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
