"""The table of trials: medians of one trial equal its metrics and have bounds of their own."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from bakeoff import results
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import note
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report import render_html
from bakeoff.results.report.sections.trials import _row, trial_rows
from bakeoff.results.text.findings import sentence
from bakeoff.results.text.format import ABSENT, value_text
from tests.results.builders import Sheet, build_run
from tests.results.some_findings import remark

NAMES = {"ttft": "ttft_p50_s", "itl": "itl_p50_s"}
BOUNDS = re.compile(r"(\S+) \S+ \[(\S+), (\S+)\]")


def test_bounds_hold_the_trials_own_median(demo: results.Run) -> None:
    trials, bounded = sorted(demo.finished, key=lambda trial: trial.record.order), 0
    for row, trial in zip(trial_rows(demo), trials, strict=False):
        for column, name in NAMES.items():
            metric, text = CATALOGUE[name], getattr(row, column)
            assert text.startswith(value_text(metric.unit, trial.metrics[name].value))
            if match := BOUNDS.fullmatch(text):
                centre, low, high = map(float, match.groups())
                assert low <= centre <= high
                bounded += 1
    assert bounded >= len(trials) / 2, "few of them have 20 independent requests"


def test_few_requests_have_no_bounds_and_none_no_median(tmp_path: Path) -> None:
    few = results.load(build_run(tmp_path / "few", Sheet(requests=8)))
    texts = [row.ttft for row in trial_rows(few)]
    assert any(text != ABSENT for text in texts)
    assert not any("[" in text for text in texts)
    never = results.load(build_run(tmp_path / "never", replace(Sheet(), finished=1)))
    assert (trial_rows(never)[-1].ttft, trial_rows(never)[-1].itl) == (ABSENT, ABSENT)


def test_a_note_stands_last_among_the_remarks_of_a_valid_trial(demo: results.Run) -> None:
    findings = [note(FindingCode.ECC_CORRECTED, gpu="gpu1", errors=2), remark(FindingCode.SOME_FOREIGN_LOAD)]
    trial = demo.finished[0]
    noted = structs.replace(trial, record=structs.replace(trial.record, findings=findings))
    texts = [f"warning: {sentence(findings[1])}", f"note: {sentence(findings[0])}"]
    assert _row(noted, [trial.record.engine], []).remarks == texts


@pytest.mark.slow
def test_remarks_have_the_width_of_the_table_below_their_trial(demo: results.Run) -> None:
    _, table = render_html(demo).split('<table class="plain trials">')
    table, *_ = table.split("</table>")
    rows = [row for row in trial_rows(demo) if row.remarks]
    assert rows
    assert table.count('<tr class="below"><td class="number"></td><td colspan="11">') == len(rows)
    assert table.count("<th ") == 1 + 11
    assert table.count("<p>") == sum(len(row.remarks) for row in rows)
