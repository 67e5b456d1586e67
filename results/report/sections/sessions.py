"""Sessions of several requests: in the long run, one by one, and their requests by agent, turn and prompt length."""

from collections.abc import Mapping
from typing import Any

from bakeoff.results.report.group_tables import group_table
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.session_lanes import lane_figures
from bakeoff.results.report.session_figures import session_table
from bakeoff.results.run.groups import by_agent, by_prompt, by_turn
from bakeoff.results.run.run import Run

METRICS = ("ttft_p50_s", "ttft_p90_s", "first_visible_p50_s", "tpot_p50_s", "e2e_p50_s")
"""Metrics of a part of the sessions' requests."""


def _build(run: Run) -> Mapping[str, Any]:
    turns = by_turn(run)
    if not turns:
        return {}
    groups = [*by_agent(run), *turns, *by_prompt(run)]
    return {
        "session_table": session_table(run),
        "session_lanes": lane_figures(run),
        "session_groups": group_table(run, groups, METRICS, heading="requests of", label="Results within sessions"),
    }


SECTIONS = (
    Section(
        id="sessions",
        title="Sessions",
        shows="where sessions have several requests: sessions per hour, their duration and what the server adds to it; "
        "a lane for each session with its calls, pauses and sub-agents; latencies, failures and prefix hits by agent, "
        "by turn and by prompt length",
        place=25,
        build=_build,
    ),
)
