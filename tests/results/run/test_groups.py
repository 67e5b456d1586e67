"""Parts of a cell's requests, counted by hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bakeoff.results.records import Outcome, RequestRecord
from bakeoff.results.requests import Requests
from bakeoff.results.run import groups
from tests.results.handmade import request


def call(turn: int, agent: str, prompt: int, cached: int, outcome: Outcome = Outcome.OK) -> RequestRecord:
    made = request(0, [50], [7], prompt_tokens=prompt, cached_tokens=cached, outcome=outcome, index=turn)
    return msgspec.structs.replace(made, turn=turn, agent=agent)


@pytest.fixture
def run_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of one cell with one valid trial of the given requests."""

    def make(requests: Sequence[RequestRecord]) -> Any:
        level = SimpleNamespace(title="c=1", cells=[SimpleNamespace(engine="e")])
        monkeypatch.setattr(groups, "levels_of", lambda _: [level])
        return SimpleNamespace(
            manifest=SimpleNamespace(classes={}), valid_trials_of=lambda _: [SimpleNamespace(inside=Requests(requests))]
        )

    return make


def figures(rows: list[groups.RequestGroup]) -> list[tuple[str, int, int, float | None, float | None]]:
    return [(row.name, row.requests, row.failed, row.prompt_tokens, row.cached_share) for row in rows]


def test_requests_by_agent_turn_and_prompt(run_of: Any) -> None:
    run = run_of(
        [
            call(0, "", 1_000, 0),
            call(1, "", 3_000, 900),
            call(2, "a", 2_000, 500),
            call(6, "a", 300_000, 0, Outcome.HTTP_ERROR),
            call(7, "", 9, 9, Outcome.CANCELLED),
        ]
    )
    assert figures(groups.by_agent(run)) == [
        ("main agent", 2, 0, 2_000.0, 0.225),
        ("sub-agents", 2, 1, 151_000.0, pytest.approx(500 / 302_000)),
    ]
    assert [row[:3] for row in figures(groups.by_turn(run))] == [
        ("turn 1", 1, 0), ("turn 2 to 5", 2, 0), ("turn 6 to 20", 1, 1)
    ]  # fmt: skip
    assert [row[0] for row in figures(groups.by_prompt(run))] == [
        "prompt tokens 1 to 1,000", "prompt tokens 1,001 to 4,000", "prompt tokens 256,001 and more"
    ]  # fmt: skip


def test_requests_by_address_in_the_order_of_the_experiment(run_of: Any) -> None:
    places = ["b:2", "a:1", "b:2", "a:1", None]
    calls = [call(turn, "", 1_000, 100 * turn) for turn in range(5)]
    run = run_of([msgspec.structs.replace(each, address=place) for each, place in zip(calls, places, strict=True)])
    addresses = [SimpleNamespace(label="b:2"), SimpleNamespace(label="a:1")]
    record = SimpleNamespace(engine_description=SimpleNamespace(addresses=addresses))
    run.finished = [SimpleNamespace(record=record), SimpleNamespace(record=SimpleNamespace(engine_description=None))]
    assert figures(groups.by_address(run)) == [("b:2", 2, 0, 1_000.0, 0.1), ("a:1", 2, 0, 1_000.0, 0.2)]
    assert [row.output_tokens for row in groups.by_address(run)] == [14, 14]


def test_conversations_have_no_agents_and_single_requests_no_turns(run_of: Any) -> None:
    run = run_of([call(0, "", 10, 0)])
    assert groups.by_agent(run) == groups.by_turn(run) == groups.by_model(run) == []
