"""Reader of TensorRT-LLM's iteration statistics, which are sent only once."""

from typing import Any

import msgspec
import pytest

from bakeoff.engines.metrics.iterations import IterationReader
from bakeoff.engines.metrics.source import COUNTERS, GAUGES


def record(number: int, **changes: Any) -> dict[str, Any]:
    """One iteration with every key that the engine sends; ``changes`` may name a key of any part."""
    parts: dict[str, dict[str, Any]] = {
        "kvCacheStats": {
            "maxNumBlocks": 100, "freeNumBlocks": 75, "usedNumBlocks": 25, "tokensPerBlock": 32,
            "allocTotalBlocks": 25, "allocNewBlocks": 25, "reusedBlocks": 0, "missedBlocks": 0, "cacheHitRate": 0.0,
        },
        "inflightBatchingStats": {
            "numScheduledRequests": 2, "numContextRequests": 0, "numGenRequests": 2, "numPausedRequests": 0,
            "numCtxTokens": 0, "microBatchId": 0, "avgNumDecodedTokensPerIter": 0.0,
        },
        "specDecodingStats": {
            "numDraftTokens": 0, "numAcceptedTokens": 0, "numRequestsWithDraftTokens": 0, "acceptanceLength": 0.0,
            "draftOverhead": 0,
        },
    }  # fmt: skip
    whole = {
        "timestamp": "11-20-2026 15:00:00.000001", "iter": number, "iterLatencyMS": 8.5,
        "newActiveRequestsQueueLatencyMS": 0.1, "numNewActiveRequests": 0, "numActiveRequests": 2,
        "numQueuedRequests": 1, "numCompletedRequests": 0, "maxNumActiveRequests": 64, "gpuMemUsage": 1,
        "cpuMemUsage": 0, "pinnedMemUsage": 0,
    }  # fmt: skip
    for name, value in changes.items():
        next((part for part in parts.values() if name in part), whole)[name] = value
    return {**whole, **parts}


def page(*records: dict[str, Any]) -> bytes:
    return msgspec.json.encode(records)


def test_gauges_are_those_of_the_newest_iteration():
    frame = IterationReader().read(page(record(1, numActiveRequests=9), record(2, numQueuedRequests=4)))
    assert {name: frame[name] for name in GAUGES} == {"running": 2, "waiting": 4, "kv_usage_share": 0.25}
    assert set(frame) <= {*GAUGES, *COUNTERS}


def test_event_counts_are_summed_over_all_pages():
    reader = IterationReader()
    first = record(1, numDraftTokens=4, numAcceptedTokens=3, numRequestsWithDraftTokens=2, numPausedRequests=1)
    reader.read(page(first, record(2, numDraftTokens=4, numRequestsWithDraftTokens=1)))
    frame = reader.read(page(record(3, numDraftTokens=2, numAcceptedTokens=1, numPausedRequests=2)))
    assert frame["drafted_tokens_total"] == 10
    assert frame["accepted_tokens_total"] == 4
    assert frame["verifications_total"] == 3
    assert frame["preemptions_total"] == 3


def test_verifications_are_unknown_where_the_record_does_not_count_them():
    bare = record(1, numDraftTokens=4)
    del bare["specDecodingStats"]["numRequestsWithDraftTokens"]
    frame = IterationReader().read(page(bare))
    assert (frame["drafted_tokens_total"], "verifications_total" in frame) == (4, False)


def test_prefix_blocks_are_converted_to_tokens():
    reader = IterationReader()
    reader.read(page(record(1, reusedBlocks=1, missedBlocks=3)))
    frame = reader.read(page(record(2, reusedBlocks=1, missedBlocks=3), record(3, reusedBlocks=5, missedBlocks=3)))
    assert frame["prefix_hits_tokens_total"] == 5 * 32
    assert frame["prefix_queries_tokens_total"] == 8 * 32


def test_an_empty_page_has_no_gauges_and_keeps_totals():
    reader = IterationReader()
    reader.read(page(record(1, numDraftTokens=4)))
    frame = reader.read(b"[]")
    assert frame["drafted_tokens_total"] == 4
    assert not set(frame) & set(GAUGES), "an idle engine is not running what it ran last"
    assert IterationReader().read(b"[]") == {}


def test_the_slow_first_iterations_are_only_the_base_of_later_differences():
    reader = IterationReader()
    slow = [record(number, iterLatencyMS=30_000.0, numDraftTokens=8, numActiveRequests=64) for number in range(1, 4)]
    base = reader.read(page(*slow, record(4)))
    assert base["running"] == 2
    assert not any("latency" in name or name.endswith("_s") for name in base)
    later = reader.read(page(record(5, numDraftTokens=5)))
    assert (later["drafted_tokens_total"] or 0) - (base["drafted_tokens_total"] or 0) == 5


def test_records_lost_to_another_reader_are_counted():
    reader = IterationReader()
    reader.read(page(record(7), record(8)))
    assert reader.lost == 0, "what was before the first page is nobody's loss"
    reader.read(page(record(12)))
    assert reader.lost == 3
    reader.read(page(record(1)))
    assert reader.lost == 3, "numbers that begin again are another engine's"


def test_values_that_the_engine_lacks_are_absent():
    assert IterationReader().read(b'[{"iter":1,"numActiveRequests":3}]') == {"running": 3}
    bare = record(1)
    bare["kvCacheStats"] = bare["specDecodingStats"] = bare["inflightBatchingStats"] = None
    assert set(IterationReader().read(page(bare))) == {"running", "waiting"}
    empty = IterationReader().read(page(record(1, maxNumBlocks=0)))
    assert "kv_usage_share" not in empty


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"detail":"Not Found"}', b'[{"iter":"x"}]', b"[" * 100_000, b'["\xff"]']
)
def test_a_page_that_is_no_list_of_records_is_refused_and_changes_nothing(body: bytes):
    reader = IterationReader()
    reader.read(page(record(1, numDraftTokens=4)))
    with pytest.raises(ValueError, match="not a list of iterations"):
        reader.read(body)
    assert reader.read(b"[]")["drafted_tokens_total"] == 4
