"""``bakeoff history``: its exit code follows from the newest runs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bakeoff.results.history import history
from tests.harness.cli.test_cli import in_process as bakeoff
from tests.results.nights import Nights, nights

STILL = [20.0, 20.2, 19.9, 20.1, 20.0, 19.8, 20.1, 20.0, 19.9, 20.2]
SLOWER = [value * 1.2 for value in STILL]


def code(monkeypatch: pytest.MonkeyPatch, values: Sequence[float], *more: str) -> int:
    monkeypatch.setattr(history, "Index", lambda _: Nights(nights("itl_p50_s", values)))
    return bakeoff("history", "--metric", "itl_p50_s", *more)


def test_the_exit_code_is_that_of_the_newest_step(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert code(monkeypatch, [*STILL, *STILL]) == 0
    assert "No series ends with a degradation." in capsys.readouterr().out
    assert code(monkeypatch, [*STILL, *SLOWER]) == 1
    assert "Worse: the newest step is a degradation in ITL p50 of only at c=4." in capsys.readouterr().out
    assert code(monkeypatch, [*SLOWER, *STILL]) == 0
    assert code(monkeypatch, [*STILL, *STILL, 24.0]) == 2, "one run is no level yet"


def test_a_step_that_is_older_than_the_runs_asked_for_no_longer_counts(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert code(monkeypatch, [*STILL, *SLOWER], "--newest", "10") == 0
    assert "in 1 series of up to 10 runs" in capsys.readouterr().out


def test_too_few_runs_are_2_and_mistakes_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    assert code(monkeypatch, STILL[:5]) == 2
    assert "the longest series has 5 runs; detecting a step needs 3 runs before" in capsys.readouterr().err
    assert code(monkeypatch, STILL, "--metrik", "itl_p50_s") == 3
    assert code(monkeypatch, STILL, "--metric", "itl") == 3
    monkeypatch.undo()
    assert bakeoff("history", str(tmp_path)) == 3


def test_json_has_the_series_with_their_steps_and_doubts(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert code(monkeypatch, [*STILL, *SLOWER], "--json") == 1
    (series,) = msgspec.json.decode(capsys.readouterr().out)
    assert (series["doubt"], series["is_current"], series["zeros"], series["drifts"]) == (None, True, [], [])
    assert series["changes"][0]["first_after"]["run"] == "night-010"
    assert [stretch["first"] for stretch in series["course"]["stretches"]] == [0, 10]
