"""Cache gaps of cells are pooled over trials by their prompt tokens."""

import msgspec
import pytest

from bakeoff.results.records import AssumedRouting, CacheCause, CacheGap, CacheGaps
from bakeoff.results.run.cache import _mean, largest_cause
from bakeoff.results.text.cache import gap_text

GAP = CacheGap("", 1000, 0.4, 0.9, {CacheCause.EVICTION: 0.3, CacheCause.ROUNDING: 0.1})


def test_the_unexplained_part_is_what_the_others_leave():
    assert GAP.unexplained == pytest.approx(0.1)
    assert msgspec.structs.replace(GAP, observed=None).unexplained is None


def test_trials_count_by_their_tokens():
    other = CacheGap("", 3000, 0.8, 0.9, {CacheCause.EVICTION: 0.1})
    pooled = _mean([GAP, other])
    assert (pooled.prompt_tokens, pooled.observed) == (4000, pytest.approx(0.7))
    assert pooled.parts == {
        CacheCause.EVICTION: pytest.approx(0.15), CacheCause.ROUNDING: pytest.approx(0.025)
    }  # fmt: skip
    assert pooled.unexplained == pytest.approx(0.25 * 0.1)
    assert _mean([GAP, msgspec.structs.replace(other, observed=None)]).observed is None


def test_the_largest_cause_is_named():
    assert largest_cause(GAP) is CacheCause.EVICTION
    assert largest_cause(msgspec.structs.replace(GAP, parts={CacheCause.ROUNDING: 0.0})) is None


def test_the_gap_in_one_line():
    line = "40 % of the prompt tokens hit, 90 % could; points lost: evicted 30.0, block rounding 10.0, unexplained 10.0"
    gaps = CacheGaps(16, None, is_assumed=False, whole=GAP)
    assert gap_text(gaps) == line
    assumed = msgspec.structs.replace(gaps, assumed_routing=AssumedRouting.IN_TURN)
    assert gap_text(assumed) == (
        f"{line}; replicas not named in answers; the hits fit a router that takes them in turn"
    )
