"""Sessions in the report and the terminal: the long run of each engine, and the sessions that lanes show."""

import io
import json
import re

import msgspec
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.harness.virtual import Fault, Fixed, PerToken, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.results.report import print_summary
from bakeoff.results.report.offline import fragment
from bakeoff.results.report.sections.session_lanes import MAX_LANES, lane_figures
from bakeoff.results.report.sections.sessions import SECTIONS
from bakeoff.results.report.session_figures import session_table
from bakeoff.results.requests import Requests

FAST = VirtualEngine(service=PerToken(Fixed(0.2), Fixed(0.01)))
SLOW = msgspec.structs.replace(FAST, slowdown=3.0, faults={Fault.HTTP_500: 0.05})
LINKS = (((), ""), ((0,), ""), ((1,), "a"), ((1,), "b"), ((2, 3), ""), ((4,), ""))
PAUSES_S = (0.0, 1.0, 0.5, 0.8, 1.0, 1.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> results.Run:
    """Forty trees of six calls, of which two work at once, at two loads."""
    folder = tmp_path_factory.mktemp("sessions")
    turns = [
        {
            "input_tokens": 4, "output_tokens": 11, "prompt": "one two three four", "parents": parents,
            "think_s": pause_s, "agent": agent,
        }
        for (parents, agent), pause_s in zip(LINKS, PAUSES_S, strict=True)
    ]  # fmt: skip
    lines = [json.dumps({"id": f"tree-{number}", "turns": turns}) for number in range(40)]
    (folder / "trees.jsonl").write_text("\n".join(lines), encoding="utf-8")
    experiment = virtual_experiment(
        ["fast", "slow"], [{"concurrency": 2}, {"concurrency": 4}], repeats=1,
        workload={"name": "sessions", "options": {"path": str(folder / "trees.jsonl")}},
        trial={"warm_up_s": 0.0, "duration_s": 6.0, "min_requests": 1, "ramp_s": 2.0, "max_failure_share": 0.5},
    )  # fmt: skip
    return virtual_run(experiment, {"fast": FAST, "slow": SLOW}, folder)


def test_the_long_run_of_each_engine_at_each_load(run: results.Run) -> None:
    """Five answers of 0.3 s are on the longest path, whose pauses last 3.8 s; on the slow engine answers last 0.9 s."""
    table = session_table(run)
    assert table is not None
    assert [[cell.text for cell in row[:2]] for row in table.rows] == [
        ["c=2", "fast"], ["c=2", "slow"], ["c=4", "fast"], ["c=4", "slow"]
    ]  # fmt: skip
    titles = [column.title for column in table.columns]
    columns = dict(zip(titles, zip(*table.rows, strict=True), strict=True))
    assert [cell.text for cell in columns["session, tools"]] == ["3.80 s"] * 4
    assert [cell.detail for cell in columns["session, tools"]] == [""] * 4
    of_fast = run.cells[0].intervals
    assert of_fast["session_s"].centre == pytest.approx(3.8 + 5 * 0.3, rel=0.02)
    assert of_fast["sessions_per_hour"].centre == pytest.approx(3600 * 2 / 5.3, rel=0.02)
    assert of_fast["tokens_per_s_per_session"].centre == pytest.approx(66 / 5.3, rel=0.02)
    per_hour = 3600 * of_fast["requests_per_s"].centre
    assert float(columns["requests"][0].text.removesuffix(" /h").replace(",", "")) == pytest.approx(per_hour, rel=1e-3)


def test_lanes_show_one_trial_of_each_engine_at_its_highest_load(run: results.Run) -> None:
    fast, slow = lane_figures(run)
    assert (fast.engine, fast.colour, slow.engine, slow.colour) == ("fast", "e0", "slow", "e1")
    assert re.fullmatch(r"c=4, repeat \d: all \d+ sessions with a call in or around the window\.", fast.note)
    assert 'class="cross"' in slow.svg
    assert 'class="cross"' not in fast.svg


def test_of_many_sessions_evenly_spaced_ones_are_drawn(run: results.Run) -> None:
    (trial, *_) = run.finished
    (level, *_) = (cell for cell in run.cells if cell.engine == "fast")
    requests = [
        msgspec.structs.replace(request, index=request.index + 1000 * copy, session=f"{copy}-{request.session}")
        for request in trial.requests
        for copy in range(MAX_LANES)
    ]
    many = msgspec.structs.replace(trial, requests=Requests(requests))
    only = _OneTrial(run, many, level)
    (figure,) = lane_figures(only)  # type: ignore[arg-type]
    assert re.search(rf"{MAX_LANES} of \d\d+ sessions", figure.note)
    assert figure.svg.count('class="tick" text-anchor="start">') == MAX_LANES
    assert lane_figures(only) == [figure]  # type: ignore[arg-type]


class _OneTrial:
    def __init__(self, run: results.Run, trial: object, cell: object) -> None:
        self.manifest, self.finished, self.cells, self._trial = run.manifest, run.finished, [cell], trial

    def valid_trials_of(self, _: object) -> list[object]:
        return [self._trial]


def test_report_and_terminal_have_the_table(run: results.Run) -> None:
    (section,) = SECTIONS
    body = fragment(section.template, section.build(run))
    assert body.count('class="chart lanes"') == 2
    assert "session, server" in body
    assert "first visible" not in body, "it is the TTFT"
    out = io.StringIO()
    print_summary(run, Console(file=out, width=100))
    text = out.getvalue()
    assert re.search(r"c=2 +fast +[\d,]+ /h +5\.\d\d s +3\.80 s +1\.\d\d s", text)
    assert "sessions in the long run" in text


def test_runs_of_single_requests_have_none(demo: results.Run) -> None:
    assert session_table(demo) is None
    assert lane_figures(demo) == []
    (section,) = SECTIONS
    assert section.build(demo) == {}
