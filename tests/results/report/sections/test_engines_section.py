"""The engines: their settings side by side, and what differs between starts of one."""

import copy

import msgspec
import pytest

from bakeoff import results
from bakeoff.results.report import render_html
from bakeoff.results.report.engine_settings import difference_text, setting_rows
from bakeoff.results.report.sections.engines import engine_cards

DTYPE = {"dtype": "float32", "max_model_len": 8192}


def with_starts(run: results.Run, **by_engine: list[dict[str, object]]) -> results.Run:
    """The run, whose engines' descriptions are changed: the n-th start of an engine by its n-th item, then its last."""
    seen: dict[str, int] = {}
    finished = []
    for trial in run.finished:
        engine, described = trial.record.engine, trial.record.engine_description
        changes = by_engine[engine][min(seen.get(engine, 0), len(by_engine[engine]) - 1)]
        seen[engine] = seen.get(engine, 0) + 1
        record = msgspec.structs.replace(trial.record, engine_description=msgspec.structs.replace(described, **changes))
        finished.append(msgspec.structs.replace(trial, record=record))
    changed = copy.copy(run)
    changed.__dict__ = {"folder": run.folder, "path": run.path, "log": run.log, "status": run.status}
    changed.__dict__ |= {"manifest": run.manifest, "finished": finished}
    return changed


@pytest.mark.slow
def test_settings_that_two_engines_have_otherwise_are_named_before_their_numbers(demo: results.Run) -> None:
    run = with_starts(
        demo, reference=[{"settings": DTYPE | {"enable_prefix_caching": True}}],
        transformers=[{"asked": {"dtype": "bfloat16", "max_model_len": 8192}}],
    )  # fmt: skip
    assert difference_text(run) == (
        "Set differently: dtype (float32 in reference, bfloat16 in transformers). "
        "transformers does not report what it runs with."
    )
    page = render_html(run)
    assert page.index("Set differently: dtype") < page.index('<table class="summary stacked">')
    rows = {row.name: (row.texts, row.differs) for row in setting_rows(run)}
    assert rows["max_model_len"] == (["8192", "8192"], False)
    assert rows["enable_prefix_caching"] == (["yes", "–"], False)


def test_what_it_reports_counts_more_than_what_it_was_given(demo: results.Run) -> None:
    told = {"asked": {"max_num_seqs": 256}, "settings": {"max_num_seqs": 64}}
    run = with_starts(demo, reference=[told], transformers=[told])
    assert ["64", "64"] in [row.texts for row in setting_rows(run)]
    assert difference_text(run) is None


def test_logs_without_settings_name_no_difference(demo: results.Run) -> None:
    assert difference_text(demo) is None


@pytest.mark.parametrize("drawn", [True, False], ids=["recorded", "older-log"])
def test_what_the_launcher_draws_is_no_change(demo: results.Run, drawn: bool) -> None:
    starts = [
        {"argv": ["serve", "--port", port, "--dtype", "float32"], "url": None, "drawn": [port] if drawn else []}
        for port in ("36311", "39663", "36021")
    ]
    run = with_starts(demo, reference=starts, transformers=[{}])
    assert [card.changed for card in engine_cards(run)] == [[], []]


def test_a_change_between_starts_is_named_with_both_values(demo: results.Run) -> None:
    starts = [{"version": "0.24.0", "argv": ["serve", "--max-num-seqs", "8"]}, {"version": "0.24.1", "argv": ["serve"]}]
    run = with_starts(demo, reference=starts, transformers=[{}])
    assert engine_cards(run)[0].changed == [
        "version: 0.24.0, then 0.24.1", "command: serve --max-num-seqs 8, then serve"
    ]  # fmt: skip


def test_speculation_is_compared_as_it_was_given_and_numbers_by_their_value(demo: results.Run) -> None:
    drafts = {"speculation": {"method": "ngram", "num_tokens": 4}}
    run = with_starts(
        demo, reference=[{"asked": drafts, "settings": {"cpu_offload_gb": 0.0}}],
        transformers=[{"settings": {"cpu_offload_gb": 0, "memory_fraction": 0.9}}],
    )  # fmt: skip
    assert difference_text(run) == "Set differently: speculation (ngram 4 in reference, none in transformers)."


def test_trials_reused_from_an_older_log_do_not_hide_what_later_ones_report(demo: results.Run) -> None:
    resumed: list[dict[str, object]] = [{}, {"settings": DTYPE}]
    run = with_starts(demo, reference=resumed, transformers=[{"settings": DTYPE}])
    assert difference_text(run) is None
    assert ["8192", "8192"] in [row.texts for row in setting_rows(run)]
