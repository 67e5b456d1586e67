"""Prompt tokens, divided into those that an engine found in its cache and those that it computed."""

import pytest

from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.throughput import prompt_tokens_per_s, uncached_prompt_tokens_per_s
from bakeoff.results.records import Outcome, Window
from bakeoff.results.requests import Requests
from tests.results.handmade import MS, request

SECOND = Window(0, 1000 * MS)


def test_an_engine_that_tells_only_its_hits_looked_the_other_prompts_up_too() -> None:
    """vLLM omits a count of 0: 60 of 100 + 100 + 100 tokens are a fifth, not 60 % of the one prompt with hits."""
    hit = request(0, [10], prompt_tokens=100, cached_tokens=60)
    misses = [request(i, [10 + i], prompt_tokens=100) for i in (1, 2)]
    assert prompt_tokens(Requests([hit, *misses])) == (60, 300)
    assert prompt_tokens(Requests(misses)) is None


def test_a_prompt_that_was_never_looked_up_is_in_neither() -> None:
    refused = request(1, outcome=Outcome.REFUSED)
    assert prompt_tokens(Requests([request(0, [10], prompt_tokens=100, cached_tokens=0), refused])) == (0, 100)


def test_what_was_computed_is_what_was_not_cached() -> None:
    """Prompts of 100 and 50 are answered inside the window, with 80 tokens cached; one of 70 is planned outside."""
    requests = [
        request(0, [10], prompt_tokens=100, cached_tokens=80),
        request(0, [900], prompt_tokens=50),
        request(1000, [1100], prompt_tokens=70, cached_tokens=70),
    ]
    assert prompt_tokens_per_s(Requests(requests), SECOND).value == pytest.approx(150)
    assert uncached_prompt_tokens_per_s(Requests(requests), SECOND).value == pytest.approx(70)


def test_without_the_engines_counts_there_is_no_split() -> None:
    silent = Requests([request(0, [10], prompt_tokens=100)])
    reason = "no answer reports cached prompt tokens"
    assert uncached_prompt_tokens_per_s(silent, SECOND).reason == reason
    uncounted = Requests([request(0, [10], cached_tokens=4)])
    assert uncached_prompt_tokens_per_s(uncounted, SECOND).reason == "the engine did not report its prompt tokens"
