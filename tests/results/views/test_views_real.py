"""Recorded runs of the real tools: their printed figures, the measured server's own record, and the tools' own stamps.

``make acceptance AREA=views`` makes such runs anew; its ``--fixtures`` writes these files.
"""

from pathlib import Path

import msgspec
import pytest

from bakeoff.results.records import Load, RequestRecord
from bakeoff.results.requests import Requests
from bakeoff.results.views import VIEWS, Figure, Log, MetricFamily

FOLDER = Path(__file__).parents[1] / "views"
NOISE = {"std", "min", "max"}
RATES = {MetricFamily.REQUEST_RATE, MetricFamily.OUTPUT_RATE}
UNSTAMPED = {"vllm": RATES | {MetricFamily.DURATION}, "aiperf": RATES}
"""Families that depend on the beginning and end of the whole run, which these tools' files do not contain."""


class Kept(msgspec.Struct, frozen=True):
    """One run of one tool, as tests/acceptance/views/real_tools.py writes it."""

    tool: str
    case: str
    true: list[RequestRecord]
    stamped: list[RequestRecord]
    printed: dict[str, float]


def kept() -> list[Kept]:
    return [msgspec.json.decode(path.read_bytes(), type=Kept) for path in sorted(FOLDER.glob("*-*.json"))]


def figures(tool: str, requests: list[RequestRecord]) -> dict[str, Figure]:
    return VIEWS[tool].view(Log(Requests(requests), 0, Load(concurrency=4))).figures


def test_every_tool_is_kept_in_every_case() -> None:
    cases = {"completions", "chat", "4 tokens a chunk"}
    assert {(run.tool, run.case) for run in kept()} == {(t, c) for t in ("vllm", "aiperf", "guidellm") for c in cases}


@pytest.mark.parametrize("run", kept(), ids=lambda run: f"{run.tool}, {run.case}")
def test_the_servers_own_record_gives_what_the_tool_printed_within_one_per_cent(run: Kept) -> None:
    view = figures(run.tool, run.true)
    compared = {
        name: number
        for name, number in run.printed.items()
        if view[name].family is not MetricFamily.OTHER and view[name].stat not in NOISE
    }
    assert {figure.family for name, figure in view.items() if name in compared} >= {
        MetricFamily.TTFT, MetricFamily.ITL, MetricFamily.E2E, MetricFamily.OUTPUT_RATE,
        MetricFamily.REQUEST_RATE, MetricFamily.DURATION,
    }  # fmt: skip
    assert {name: view[name].value.value for name in compared} == pytest.approx(compared, rel=0.01)


@pytest.mark.parametrize("run", kept(), ids=lambda run: f"{run.tool}, {run.case}")
def test_the_tools_own_stamps_give_the_same_numbers(run: Kept) -> None:
    """Clocks play no part here: formula, percentiles and spread are the tool's.

    GuideLLM stamps to a quarter of a microsecond (seconds since 1970 as a float), which shows in its spread of 0.5 ms.
    """
    view = figures(run.tool, run.stamped)
    compared = {n: number for n, number in run.printed.items() if view[n].family not in UNSTAMPED.get(run.tool, set())}
    assert len(compared) >= 15
    assert {name: view[name].value.value for name in compared} == pytest.approx(compared, rel=1e-4, abs=1e-6)
