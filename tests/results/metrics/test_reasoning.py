"""Reasoning worked by hand: when a user sees a word, how long the model thinks, and how fast either comes."""

import msgspec
import pytest

from bakeoff.results.metrics import CATALOGUE, headline, trial_metrics
from bakeoff.results.records import Load, Outcome, RequestRecord, Slo, TokenSource
from tests.results.handmade import request, trial
from tests.results.one_request import first_visible_s, meets, reasoning_tpot_s, thinking_s, visible_tpot_s

FAMILIES = ("first_visible", "thinking", "reasoning_tpot", "visible_tpot")


def thinking(kinds: str, chunks: list[float], tokens: list[int] | None = None, **more: object) -> RequestRecord:
    return msgspec.structs.replace(request(0, chunks, tokens), chunk_kinds=kinds, **more)


TWENTY_AND_FIVE = thinking("r" * 20 + "t" * 5, [100 + 20 * i for i in range(25)])
"""20 tokens of reasoning, then 5 that a user sees, one each 20 ms after 100 ms."""
TOOLS = thinking("rrcrrtt", [10, 20, 70, 100, 130, 150, 155], [1, 2, 4, 1, 3, 1, 2])
"""Reasoning, a tool call, reasoning again, text."""


def test_twenty_thinking_and_five_visible_tokens() -> None:
    assert first_visible_s(TWENTY_AND_FIVE) == pytest.approx(0.5)
    assert thinking_s(TWENTY_AND_FIVE) == pytest.approx(0.38)
    assert reasoning_tpot_s(TWENTY_AND_FIVE) == visible_tpot_s(TWENTY_AND_FIVE) == pytest.approx(0.02)


def test_stretches_of_one_kind_are_paced_by_themselves() -> None:
    """Reasoning: 10 ms for 2 tokens and 30 ms for 3; visible: 5 ms for 2. Gaps between two kinds belong to neither."""
    assert first_visible_s(TOOLS) == pytest.approx(0.07), "a tool call is seen"
    assert thinking_s(TOOLS) == pytest.approx(0.12)
    assert reasoning_tpot_s(TOOLS) == pytest.approx(0.04 / 5)
    assert visible_tpot_s(TOOLS) == pytest.approx(0.005 / 2)


def test_chunks_of_one_read_are_one() -> None:
    assert reasoning_tpot_s(thinking("rrr", [10, 10, 30], [1, 1, 1])) == pytest.approx(0.02)
    assert reasoning_tpot_s(thinking("rrt", [10, 10, 30])) is None


def test_what_is_not_there_is_none() -> None:
    only = thinking("rrr", [10, 20, 30])
    assert (first_visible_s(only), visible_tpot_s(only)) == (None, None)
    plain = request(0, [10, 20])
    assert (thinking_s(plain), reasoning_tpot_s(plain)) == (None, None)
    assert first_visible_s(plain) == pytest.approx(0.01), "without reasoning every token is seen"
    assert first_visible_s(msgspec.structs.replace(plain, textless_chunks=[0])) == pytest.approx(0.02)
    assert reasoning_tpot_s(thinking("rrr", [10, 20, 30], token_source=TokenSource.UNPLACED)) is None


def test_a_trial_of_answers_that_reason() -> None:
    """20 and 6 tokens of reasoning by the chunks, 480 hidden by the engine's count; 5, 7 and 4 visible tokens."""
    hidden = thinking("", [800, 820], [2, 2], reasoning_tokens=480, hidden_tokens=480, output_tokens=4)
    values = trial_metrics(trial(Load(rate_per_s=3.0, arrival="poisson")), [TWENTY_AND_FIVE, TOOLS, hidden], [], Slo())
    assert values["first_visible_p50_s"].value == pytest.approx(0.5)
    assert values["reasoning_tokens"].value == pytest.approx((20 + 7 + 480) / 3)
    assert values["hidden_tokens"].value == pytest.approx(160)
    assert values["reasoning_share"].value == pytest.approx(507 / (507 + 5 + 7 + 4))
    assert values["visible_tokens_per_s"].value == pytest.approx(16), "in a window of one second"
    assert values["output_tokens_per_s"].value == pytest.approx(43)
    present = {name for name, value in values.items() if value.value is not None}
    assert headline(present)[:2] == ("ttft_p50_s", "first_visible_p50_s")


def test_without_reasoning_all_of_it_is_absent() -> None:
    values = trial_metrics(trial(Load(concurrency=1)), [request(0, [10, 20, 30])], [], Slo())
    names = [name for name in CATALOGUE if CATALOGUE[name].family in FAMILIES]
    names += ["visible_tokens_per_s", "reasoning_tokens", "hidden_tokens", "reasoning_share"]
    assert {values[name].reason for name in names} == {"no answer reasons"}
    assert "first_visible_p50_s" not in headline(CATALOGUE.keys() - set(names))


def test_a_failed_answer_is_later_than_all_and_the_slo_says_what_it_means() -> None:
    failed = msgspec.structs.replace(TWENTY_AND_FIVE, outcome=Outcome.STREAM_ERROR)
    load = [TWENTY_AND_FIVE, *([failed] * 2)]
    value = trial_metrics(trial(Load(concurrency=1)), load, [], Slo())["first_visible_p50_s"]
    assert (value.value, value.absence) == (None, "among_failures")
    assert meets(TWENTY_AND_FIVE, Slo(ttft_s=0.1))
    assert not meets(TWENTY_AND_FIVE, Slo(ttft_s=0.1, first_visible_s=0.4))
    assert meets(TWENTY_AND_FIVE, Slo(first_visible_s=0.5))
    assert not meets(thinking("rrr", [10, 20, 30]), Slo(first_visible_s=9.0)), "a user saw nothing"
