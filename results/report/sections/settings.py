"""What the settings of a grid do, and which are best."""

from collections.abc import Mapping
from typing import Any

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.grid_table import (
    EFFECTS_CAPTION,
    MAX_RANKED,
    RANKED_CAPTION,
    behind_text,
    effect_rows,
    short_name,
    value_text,
    why_text,
)
from bakeoff.results.report.section import Section
from bakeoff.results.run.grid import grid_report
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import interval_text


def _build(run: Run) -> Mapping[str, Any]:
    if not run.manifest.grid:
        return {}
    report = grid_report(run)
    metric, ranked, effects = report.metric, report.ranking, report.effects
    tables = [
        (base, name, [each for each in effects if (each.base, each.metric) == (base, name) and each.effects])
        for base, name in dict.fromkeys((each.base, each.metric) for each in effects)
    ]
    return {
        "settings_ranking": [
            {
                "title": f"Settings of {base} by {CATALOGUE[metric].title}",
                "names": [short_name(name) for name in own[0].values],
                "heading": CATALOGUE[metric].title,
                "rows": [
                    [
                        *map(value_text, each.values.values()), each.load, interval_text(CATALOGUE[metric], each.value),
                        behind_text(each, metric),
                    ]
                    for each in own[:MAX_RANKED]
                ],
            }
            for base in dict.fromkeys(each.base for each in ranked)
            if (own := [each for each in ranked if each.base == base])
        ],
        "settings_effects": [
            {
                "title": f"Effects of the settings of {base} on {CATALOGUE[name].title}",
                "loads": [each.load for each in loads],
                "rows": effect_rows(name, loads),
            }
            for base, name, loads in tables
            if loads
        ],
        "settings_captions": [RANKED_CAPTION, EFFECTS_CAPTION],
        "settings_whys": [why for each in effects if (why := why_text(each))],
    }  # fmt: skip


SECTIONS = (
    Section(
        id="settings",
        title="Settings",
        shows="of a grid: the best settings, and the effect of each value and each pair of settings",
        place=22,
        build=_build,
    ),
)
