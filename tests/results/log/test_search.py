"""A stored search: its events in the log, and its texts for readers."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.run_log import LevelJudged
from bakeoff.results.log.search import Attempt, Ended, EngineSearch, Over, SearchConfig, SearchRecord, Skip
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import Value
from bakeoff.results.metrics.objectives import Violation
from bakeoff.results.records import Load
from bakeoff.results.report import print_search, print_summary
from bakeoff.results.report.search_lines import attempt_text, search_lines, search_sentence
from bakeoff.results.report.verdict import verdict
from bakeoff.results.text.findings import sentence
from tests.results.amending import amend, append
from tests.results.builders import build_run
from tests.results.hostile import TERMINAL
from tests.results.some_findings import void

MISSED = "ttft_p99<500ms: it was 640 ms"
TRIED = [
    Attempt("r1-a-8", 8.0, True, 0.4),
    Attempt("r1-a-16", 16.0, False, None, [void(FindingCode.SATURATED)]),
    Attempt("r1-a-12.6", 12.6, False, -0.25, violations=[Violation("ttft_p99<500ms", "ttft_p99_s", Value(0.64))]),
    Attempt("r1-a-12", 12.0, True, 0.1),
]
ENGINE_SEARCH = EngineSearch("a", TRIED, 11.6, 12.1, 12.6, False, Ended.KNOWN)
CONFIG = SearchConfig(
    engines=["a"], over=Over.RATE, slo="ttft_p99<500ms,itl_p99<30ms", low=1.0, high=64.0, minutes=30.0,
    template=Load(arrival="poisson"),
)  # fmt: skip
RECORD = SearchRecord(CONFIG, [ENGINE_SEARCH])


def line(**changes: object) -> str:
    (text,) = search_lines(msgspec.structs.replace(RECORD, engines=[msgspec.structs.replace(ENGINE_SEARCH, **changes)]))
    return text


def test_an_answer_says_what_fails_above_it():
    assert line() == f"a: 12.1/s [11.6, 12.6], at 12.6/s {MISSED}; 4 trials"


FEW_PLANNED = Skip(up_to=64.0, planned_requests=9, needed_requests=64)
BOUNDS = "with ttft_p99<500ms and itl_p99<30ms"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, f"a carries 12.1 sessions a second {BOUNDS} (95 %: 11.6 to 12.6; 4 trials)."),
        ({"low": None}, f"a carries 12.1 sessions a second {BOUNDS} (95 %: at most 12.6; 4 trials)."),
        ({"low": 64.0, "open_above": True}, f"a carries at least 12 sessions a second {BOUNDS} (95 %; 4 trials)."),
        (
            {"attempts": TRIED[1:2], "level": 1.0, "low": None, "high": 2.0},
            f"a carries at most 2 sessions a second {BOUNDS}, which no trial met (95 %; 1 trial).",
        ),
        (
            {"low": None, "open_above": True},
            "a meets ttft_p99<500ms and itl_p99<30ms at 12/s, after too few trials to say more.",
        ),
        ({"level": None, "skip": FEW_PLANNED}, f"nothing is known of what a carries {BOUNDS}."),
        ({"level": None}, "a meets ttft_p99<500ms and itl_p99<30ms at no level that was tried."),
        ({"attempts": []}, f"nothing is known of what a carries {BOUNDS}."),
    ],
)
def test_an_answer_can_be_quoted(changes: dict[str, object], text: str):
    search = msgspec.structs.replace(ENGINE_SEARCH, **changes)
    assert search_sentence(msgspec.structs.replace(RECORD, engines=[search])) == text


def test_concurrency_is_a_number_of_users():
    config = msgspec.structs.replace(CONFIG, over=Over.CONCURRENCY, template=Load(), alpha=0.1)
    search = msgspec.structs.replace(ENGINE_SEARCH, low=8.0, level=9.0, high=10.0)
    sentence = search_sentence(msgspec.structs.replace(RECORD, config=config, engines=[search]))
    assert sentence == f"a carries 9 users at a time {BOUNDS} (90 %: 8 to 10; 4 trials)."


ANSWER = f"a: 12.1/s [11.6, 12.6], at 12.6/s {MISSED}; 4 trials"
TOP = {"low": 64.0, "level": 64.0, "high": 64.0, "open_above": True, "attempts": TRIED[:1]}
FEW = "up to 64/s: 9 requests are planned, 64 are needed"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (TOP, "a: at least 64/s; 1 trial"),
        (TOP | {"low": None}, "a: met at 8/s, too few trials for an interval; 1 trial"),
        (
            {"low": None, "level": None, "high": None, "skip": FEW_PLANNED},
            f"a: not known: levels up to 64/s were not judged, at 12.6/s {MISSED}; 4 trials ({FEW})",
        ),
        ({"low": None}, f"a: 12.1/s [below the range, 12.6], at 12.6/s {MISSED}; 4 trials"),
        ({"low": None, "level": None, "high": None}, f"a: none, at 12.6/s {MISSED}; 4 trials"),
        (
            {"attempts": [], "ended": Ended.NO_EVIDENCE, "skip": FEW_PLANNED},
            f"a: nothing is known; 0 trials, then no level was left that could be judged ({FEW})",
        ),
        ({"ended": Ended.TRIALS}, f"{ANSWER}, then the budget was spent: not known to ± 5 %"),
        ({"ended": Ended.MINUTES}, f"{ANSWER}, then the time was over (30 min)"),
        ({"ended": None}, f"{ANSWER}, not ended"),
        ({"ended": Ended.ENGINE, "lost": "signal 9"}, f"{ANSWER}, then the engine was lost (signal 9)"),
    ],
)
def test_every_end_has_its_words(changes: dict[str, object], text: str):
    assert line(**changes) == text


def test_a_trial_in_a_line():
    assert attempt_text(Over.RATE, "a", TRIED[0]) == "a at 8/s: met"
    assert attempt_text(Over.RATE, "a", TRIED[2]) == f"a at 12.6/s: violated ({MISSED})"
    throttled = void(FindingCode.THROTTLED)
    vain = Attempt("r1-a-8", 8.0, None, None, [throttled])
    assert attempt_text(Over.CONCURRENCY, "a", vain) == f"a at c=8: no evidence ({sentence(throttled)})"


def test_a_level_is_known_where_the_lower_bound_is_in_the_range():
    assert ENGINE_SEARCH.has_level
    assert not msgspec.structs.replace(ENGINE_SEARCH, low=None).has_level
    assert not EngineSearch("a").has_level
    assert not EngineSearch(
        "a", [Attempt("t", 8.0, None, None, [void(FindingCode.THROTTLED)])], 8.0, 8.0, 8.0
    ).has_level


@pytest.mark.slow
def test_a_stored_search_heads_the_report(tmp_path: Path):
    path = build_run(tmp_path)
    assert results.load(path).search is None
    amend(path, search=CONFIG)
    for attempt in TRIED:
        append(RunFolder(path), LevelJudged(engine="a", attempt=attempt))
    run = results.load(path)
    assert run.search is not None
    (search,) = run.search.engines
    assert (run.search.config, search.attempts) == (CONFIG, TRIED)
    assert 8.0 < (search.low or 0.0) < 12.0 < (search.high or 0.0) < 16.0
    out = io.StringIO()
    print_summary(run, Console(file=out))
    (line,) = search_lines(run.search)
    assert f"Highest rate that meets ttft_p99<500ms and itl_p99<30ms:\n  {line}" in " ".join(out.getvalue().split(" "))
    assert verdict(run).sentence == search_sentence(run.search)


@pytest.mark.parametrize("text", TERMINAL)
def test_no_text_of_an_engine_reaches_the_terminal_as_it_is(text: str):
    out = io.StringIO()
    attempts = [Attempt("t", 16.0, False, None, [void(FindingCode.ENGINE_DIED, detail=text)])]
    search = msgspec.structs.replace(ENGINE_SEARCH, engine=text, attempts=attempts, lost=text)
    print_search(msgspec.structs.replace(RECORD, engines=[search]), Console(file=out))
    assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(out.getvalue())
    assert text.count("[red]") * 4 == out.getvalue().count("[red]"), "markup is text"
