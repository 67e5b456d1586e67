"""The column ``token match``: how answers are summed up, and that every table has it."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.sides import select
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.metrics.quality import (
    EARLY,
    LARGE_REGRET,
    MAX_MEAN_REGRET,
    MIN_AGREEMENT,
    Difference,
    QualityRecord,
    QualitySample,
    QualitySummary,
    pooled,
    why_unchecked,
)
from bakeoff.results.report import print_comparison, print_summary, render_html
from bakeoff.results.report.markdown import markdown_summary
from bakeoff.results.report.quality import (
    differing_answers_text,
    match_text,
    nats,
    quality_warnings,
    share,
    unchecked_text,
)
from bakeoff.results.report.sections.answers import answers_view
from bakeoff.results.schema import SCHEMA_VERSION
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run

TWO = {"reference": FAST, "other": SLOW}


def answer(tokens: int, wrong: int = 0, regret: float = 0.0, at: int | None = None, **more: object) -> QualitySample:
    difference = Difference(at, 5, 6, regret) if at is not None else None
    values = {
        "index": 2, "session": "s", "turn": 0, "tokens": tokens, "agreement": 1 - wrong / tokens,
        "first_divergence": at, "mean_regret": wrong * regret / tokens, "max_regret": regret, "first": difference,
        "worst": difference, "near_ties": wrong if 0 < regret < 0.2 else 0,
    }  # fmt: skip
    return QualitySample(**(values | more))  # type: ignore[arg-type]


def only_run(folder: Path, **changes: object) -> results.Run:
    return results.load(build_run(folder, Sheet(engines=TWO, loads=LOADS[:1], requests=6, invalid=(), **changes)))  # type: ignore[arg-type]


def printed(run: results.Run, width: int = 100) -> str:
    out = io.StringIO()
    print_summary(run, Console(file=out, width=width))
    return out.getvalue()


def test_answers_weigh_by_their_tokens() -> None:
    summary = pooled([answer(10, 2, 0.1, 4), answer(30), QualitySample(index=9, session="t", turn=1, why="cut")])
    assert summary is not None
    assert (summary.answers, summary.tokens, summary.identical, summary.near_ties) == (2, 40, 1, 2)
    assert summary.agreement == pytest.approx(38 / 40)
    assert summary.mean_regret == pytest.approx(0.2 / 40)
    assert summary.max_regret == 0.1
    assert summary.mean_abs_logprob_diff is None
    answers = [answer(10, mean_abs_logprob_diff=0.1, max_abs_logprob_diff=0.4), answer(30)]
    summary = pooled([*answers, answer(30, mean_abs_logprob_diff=0.3, max_abs_logprob_diff=0.2)])
    assert summary is not None
    assert summary.mean_abs_logprob_diff == pytest.approx(0.25)
    assert summary.max_abs_logprob_diff == 0.4


def test_nothing_compared_is_no_summary() -> None:
    left_out = QualitySample(index=9, session="t", turn=1, why="cut")
    assert pooled([]) is None
    assert pooled([left_out]) is None
    assert why_unchecked([]) == "no trial ended"
    assert why_unchecked([None]) == "answers were not compared"
    assert why_unchecked([None, QualityRecord(why="no weights")]) == "no weights"
    assert why_unchecked([QualityRecord(samples=[left_out])]) == "cut"


@pytest.mark.parametrize(
    ("sample", "differs"),
    [
        (answer(100), False),
        (answer(100, 1, 5.0, 90), False),
        (answer(100, 2, 3.0, 90), True),
        (answer(100, 11, 0.3, 40), True),
        (answer(100, 30, 0.1, 40), False),
        (answer(100, 60, 0.1, 40), True),
    ],
    ids=["same", "one costly", "two costly: mean regret", "agreement", "near ties", "too many near ties: mean regret"],
)
def test_answers_differ_where_rounding_does_not_explain_it(sample: QualitySample, differs: bool) -> None:
    summary = pooled([sample])
    assert summary is not None
    assert summary.differs is differs
    if summary.differs:
        assert summary.mean_regret > MAX_MEAN_REGRET or summary.agreement < MIN_AGREEMENT
        assert differing_answers_text(summary).startswith("differ from the reference: ")


def test_an_early_costly_token_is_told_and_a_late_or_cheap_one_is_not() -> None:
    early, late, cheap = (answer(200, 1, *shape) for shape in ((LARGE_REGRET, 7), (LARGE_REGRET, 8), (0.49, 0)))
    shown = match_text(pooled([early, late, cheap]), "")
    assert "1 of 3 answers have a regret of 0.5 nats or more within their first 8 tokens" in shown.note
    assert match_text(pooled([late, cheap]), "").note == ""


def test_only_what_always_agrees_is_100_percent() -> None:
    assert [share(value) for value in (1.0, 0.99999, 0.992, 0.5, 0.0)] == [
        "100 %",
        "99.9 %",
        "99.2 %",
        "50.0 %",
        "0.0 %",
    ]
    assert [nats(value) for value in (0.0, 0.00213, 1.24)] == ["0", "0.0021", "1.2"]


def test_every_table_has_the_column(tmp_path: Path) -> None:
    run = only_run(tmp_path)
    text = printed(run)
    (head,) = (line for line in text.splitlines() if line.startswith("engine"))
    assert head.endswith("token match")
    assert text.count("100 %\n") + text.count(" 100 % ") == 1
    assert text.count("97.2 %") == 1
    assert text.count("of 9 answers") == 2
    assert "| 100 % of 9 answers |\n" in markdown_summary(run)
    assert "| 97.2 % of 9 answers |\n" in markdown_summary(run)
    page = render_html(run)
    figure = '<a href="#answers">97.2 %</a><span class="why">of 9 answers</span>'
    assert f'data-label="token match">{figure}' in page
    assert '<td><a href="#answers">97.2 % of 9 answers</a></td>' in page, "among all metrics"
    assert page.count('<td class="number">97.2 % of 3</td>') == 3, "each trial"
    assert run.trials.agreement.tolist() == pytest.approx([1, 70 / 72, 70 / 72, 1, 1, 70 / 72])
    assert run.trials.mean_regret.max() == pytest.approx(2 * 0.02 / 72)
    (first, second) = run.cells
    assert first.quality == QualitySummary(
        answers=9, tokens=216, agreement=1.0, identical=9, mean_regret=0.0, max_regret=0.0, near_ties=0
    )
    assert msgspec.to_builtins(second)["quality"]["agreement"] == pytest.approx(210 / 216)


def test_the_terminal_table_stays_within_its_width(tmp_path: Path) -> None:
    for regret in (0.02, 2.0, None):
        text = printed(only_run(tmp_path / str(regret), regret=regret))
        assert max(len(line) for line in text.splitlines() if "--all)" not in line) <= 100
        assert "…" not in text.partition("Warnings")[0]


def test_a_comparison_names_both_sides(tmp_path: Path) -> None:
    run = only_run(tmp_path, regret=9.0)
    a, b = (select(f"{run.path}@{engine}") for engine in TWO)
    out = io.StringIO()
    compared = compare_sides(a, b)
    print_comparison(compared, Console(file=out, width=150))
    heads, _, row, answers = out.getvalue().partition("load")[2].splitlines()[:4]
    assert heads.split() == ["token", "match", "A", "token", "match", "B", "judgement"]
    assert row.split() == ["c=1", "100", "%", "97.2", "%", "▼", "B", "differs"]
    assert answers.split() == ["of", "9", "of", "9"]
    out = io.StringIO()
    unknown = msgspec.structs.replace(compared, answers=dict.fromkeys(compared.answers, (None, None)))
    print_comparison(unknown, Console(file=out, width=150))
    assert "token match" not in out.getvalue(), "nothing is said where nothing was compared"


def test_answers_that_differ_are_warned_of_everywhere(tmp_path: Path) -> None:
    run = only_run(tmp_path, regret=9.0)
    warning = (
        "other, c=1: answers differ from the reference: 97.2 % of 216 tokens match, mean regret 0.25 nats; "
        "check weights, quantisation and chat template"
    )
    assert quality_warnings(run) == [warning]
    text = printed(run, width=300)
    assert f"Warnings:\n  {warning}\n" in text
    assert "token match: 3 of 9 answers have a regret of 0.5 nats or more within their first 8 tokens" in text
    assert f"<strong>WARNING</strong> {warning}" in render_html(run)


def test_a_reference_that_failed_is_one_warning_for_all_its_trials(tmp_path: Path) -> None:
    run = only_run(tmp_path)
    for trial in run.finished[:2]:
        why = "the reference took too long"
        left_out = [QualitySample(index=2, session="s2", turn=0, why=why)]
        run.folder.trial(trial.record.id).write_quality(QualityRecord(samples=left_out, warnings=[why]))
    run = results.load(run.path)
    assert quality_warnings(run) == [
        "answers of r1-e0-1 and r1-e1-1 were not all compared: the reference took too long"
    ]
    assert answers_view(run).left_out == [
        "reference: 1 answer: the reference took too long",
        "other: 1 answer: the reference took too long",
    ]


def test_an_engine_without_answers_has_a_dash_and_a_footnote(tmp_path: Path) -> None:
    run = only_run(tmp_path)
    for trial in run.finished:
        if trial.record.engine == "other":
            why = QualityRecord(why="the run names no files of the model; set path in [model]")
            run.folder.trial(trial.record.id).write_quality(why)
    run = results.load(run.path)
    text = printed(run)
    assert "token match: the run names no files of the model; set path in [model]" in text
    assert run.cells[1].quality is None
    assert not answers_view(run).picture, "one point compares nothing"
    assert "the run names no files of the model" in render_html(run)


def test_a_run_without_answers_says_why_once(tmp_path: Path) -> None:
    run = only_run(tmp_path, regret=None)
    assert unchecked_text(run) == "answers were not compared"
    text = printed(run)
    assert text.count("match") == 1, "the reason, and no column"
    assert "no token match: answers were not compared" in text
    assert run.trials.agreement.isna().all()
    page = render_html(run)
    assert "is missing: answers were not compared." in page
    assert 'id="answers"' not in page


def test_the_section_shows_where_answers_part_and_the_costliest_token(tmp_path: Path) -> None:
    run = only_run(tmp_path, regret=0.02)
    seen = answers_view(run)
    titles = [column.title for column in seen.table.columns]
    first = titles.index("never")
    assert titles[first : first + 5] == ["never", "before 8", "8–31", "32–127", "from 128"]
    assert [[cell.text for cell in (row[1], *row[first : first + 5])] for row in seen.table.rows] == [
        ["reference", "9", "0", "0", "0", "0"],
        ["other", "3", "3", "3", "0", "0"],
    ]
    (worst,) = seen.worst
    assert worst.engine == "other"
    assert worst.location == "c=1, repeat 1, session s3 (request 3), token 6 of 24"
    assert (worst.actual, worst.expected) == ("“The ship sails at dawn.” (11)", "“\\n” (12)")
    page = render_html(run)
    assert "<code>“The ship sails at dawn.” (11)</code> instead of <code>“\\n” (12)</code>" in page


def test_two_engines_with_memory_and_answers_are_drawn(tmp_path: Path) -> None:
    run = only_run(tmp_path, regret=0.02)
    picture = answers_view(run).picture
    for engine, differs in (("reference", "0 %"), ("other", "2.78 %")):
        memory = next(cell for cell in run.cells if cell.engine == engine).intervals["peak_host_bytes"]
        assert f"{engine}: {memory.centre / (1 << 30):.2f}" in picture
        assert f"GiB at most, {differs} of the tokens differ" in picture


def test_the_bounds_in_the_definitions_are_the_codes_bounds() -> None:
    text = (Path(__file__).parents[3] / "docs" / "method.md").read_text(encoding="utf-8")
    assert f"mean regret exceeds {MAX_MEAN_REGRET}, or less than {100 * MIN_AGREEMENT:.0f} % of the tokens" in text
    assert f"a regret of {LARGE_REGRET} or more before their eighth token" in text
    assert EARLY == 8


def test_a_record_is_read_as_it_was_written_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    run = only_run(tmp_path)
    folder = run.folder.trial(run.finished[0].record.id)
    record = QualityRecord(samples=[answer(10, 1, 0.4, 3)], summary=pooled([answer(10, 1, 0.4, 3)]), warnings=["w"])
    folder.write_quality(record)
    assert folder.read_quality() == record
    folder.write_quality(msgspec.structs.replace(record, schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(RunUnreadable, match="update bakeoff"):
        folder.read_quality()
