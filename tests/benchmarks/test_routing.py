"""The benchmark of routing policies: what it compares."""

import pytest

from bakeoff.engines.metrics.readers import EngineValues
from bakeoff.harness.truth import Ending
from bakeoff.harness.truth.answered import ReplicaAnswered
from benchmarks.routing.policies import differences, logged, shown, total

ANSWERS = [
    ReplicaAnswered(
        tokens=5, prompt_tokens=100 * i, cached_tokens=32, start_ns=10**9, written_ns=[10**9 + i * 10**8],
        ending=Ending.COMPLETE, replica=1, queue_s=0.0,
    )
    for i in (1, 2)
]  # fmt: skip
PAGE = {
    "ttft_s_count": 2.0, "prefix_queries_tokens_total": 300.0, "prefix_hits_tokens_total": 64.0,
    "output_tokens_total": 10.0, "ttft_s_sum": 0.3,
}  # fmt: skip


def test_a_page_is_compared_with_the_log_figure_by_figure():
    log = logged(ANSWERS)
    assert (log.requests, log.hit_share, log.mean_ttft_ms) == (2, pytest.approx(64 / 300), pytest.approx(150))
    before: EngineValues = dict.fromkeys(PAGE, 7.0)
    after: EngineValues = {name: value + 7.0 for name, value in PAGE.items()}
    assert differences(shown(before, after), log) == 0
    for name, value in PAGE.items():
        assert differences(shown(before, {**after, name: value + 7.001}), log) == 1
    assert total([log, log]).prompt_tokens == 600
