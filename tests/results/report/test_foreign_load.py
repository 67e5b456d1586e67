"""Foreign load where readers see it: in the summary, in the report's table of trials and in the data frames."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.results.records import TelemetryRecord
from bakeoff.results.report import print_summary, render_html
from bakeoff.results.report.foreign_load import foreign_load_text
from tests.results.builders import CORES, FAST, FOREIGN_SHARE, LOADS, Sheet, build_run


def test_the_summary_has_a_line_of_foreign_load(demo: results.Run) -> None:
    out = io.StringIO()
    print_summary(demo, Console(file=out))
    assert "\nforeign load: median 0.4 %, at most 0.4 % of the cores\n" in out.getvalue()


@pytest.mark.slow
def test_the_report_has_the_foreign_load_of_the_run_and_each_trial(demo: results.Run) -> None:
    page = render_html(demo)
    assert "median 0.4 %, at most 0.4 % of the cores" in page
    assert page.count('<td class="number">0.400 %</td>') == len(demo.finished)


def test_frames_have_the_foreign_load_of_each_trial(demo: results.Run) -> None:
    assert demo.trials.foreign_cpu_share.tolist() == pytest.approx([FOREIGN_SHARE] * len(demo.finished))


@pytest.fixture
def small_run(tmp_path: Path) -> results.Run:
    return results.load(build_run(tmp_path, Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=2, requests=4)))


def without_own(record: TelemetryRecord) -> TelemetryRecord:
    hidden = {"cores": CORES, "unused_s": 1.0, "own_s": None}
    changed = msgspec.structs.replace(record, values=hidden, reasons={"own_s": "the engine is hidden"})
    return changed if record.source == "cpu" else record


def test_unknown_foreign_load_has_a_reason(small_run: results.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small_run.folder.trial(small_run.finished[0].record.id)
    log = first.telemetry_log
    lines = [msgspec.json.decode(line, type=TelemetryRecord) for line in log.read_bytes().splitlines()]
    log.write_bytes(b"".join(msgspec.json.encode(without_own(record)) + b"\n" for record in lines))
    assert foreign_load_text(results.load(small_run.path)).endswith("of the cores, known of 1 of 2 trials")
    second = small_run.folder.trial(small_run.finished[1].record.id)
    second.telemetry_log.write_bytes(log.read_bytes())
    assert foreign_load_text(results.load(small_run.path)) == "– (the engine is hidden)"


def test_a_run_without_samples_says_nothing(small_run: results.Run) -> None:
    for trial in small_run.finished:
        small_run.folder.trial(trial.record.id).telemetry_log.unlink()
    assert foreign_load_text(results.load(small_run.path)) == ""
