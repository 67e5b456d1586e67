"""Results within sessions: by agent, by turn and by length of the prompt."""

from collections.abc import Mapping
from typing import Any

from bakeoff.results.report.group_rows import titles_of, with_figures
from bakeoff.results.report.section import Section
from bakeoff.results.run.groups import by_agent, by_prompt, by_turn
from bakeoff.results.run.run import Run

COLUMNS = ("ttft_p50_s", "ttft_p90_s", "first_visible_p50_s", "tpot_p50_s", "e2e_p50_s")
"""Metrics of a part of the sessions' requests."""


def _build(run: Run) -> Mapping[str, Any]:
    turns = by_turn(run)
    if not turns:
        return {}
    groups = [*by_agent(run), *turns, *by_prompt(run)]
    return {"session_columns": titles_of(groups, COLUMNS), "session_rows": with_figures(run, groups, COLUMNS)}


SECTIONS = (
    Section(
        id="sessions",
        title="Sessions",
        shows="latencies, failures and prefix hits by agent, by turn and by prompt length, if sessions have several "
        "requests",
        place=55,
        folded=True,
        build=_build,
    ),
)
