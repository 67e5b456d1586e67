"""Each view on hand-made requests: the figures follow the tools' own formulas, worked out by hand."""

from collections.abc import Sequence

import pytest

from bakeoff.results.records import Load, Outcome, Phase, RequestRecord, StreamEnd
from bakeoff.results.requests import Requests
from bakeoff.results.views import VIEWS, Log, MetricFamily, View
from tests.results.handmade import MS

OPEN = Load(rate_per_s=1.0, arrival="poisson")


def answer(index: int = 0, at: float = 0, **changes: object) -> RequestRecord:
    """The worked example of docs/views.md, planned at ``at`` ms.

    Sent at 3, role at 5, chunks of 1, 4 and 2 tokens at 10, 50 and 60, an empty finish at 61, usage at 62, the end mark
    at 63.
    """

    def ns(*times: float) -> list[int]:
        return [round((at + t) * MS) for t in times]

    fields: dict[str, object] = {
        "index": index, "phase": Phase.MEASURED, "session": f"s{index}", "turn": 0, "status": 200,
        "planned_ns": ns(0)[0], "sent_ns": ns(3)[0], "ended_ns": ns(63)[0], "first_byte_ns": ns(5)[0],
        "outcome": Outcome.OK, "end": StreamEnd.COMPLETE, "chunk_ns": ns(10, 50, 60), "chunk_tokens": [1, 4, 2],
        "empty_chunk_ns": ns(5, 61), "usage_ns": ns(62)[0], "last_event_ns": ns(63)[0], "prompt_tokens": 5,
        "output_tokens": 7, "requested_output_tokens": 7, "finish_reason": "length",
    }  # fmt: skip
    return RequestRecord(**{**fields, **changes})


def view(tool: str, *requests: RequestRecord, load: Load = OPEN) -> View:
    return VIEWS[tool].view(Log(Requests(requests), 0, load))


def values(tool: str, *requests: RequestRecord) -> dict[str, float | None]:
    return {name: figure.value.value for name, figure in view(tool, *requests).figures.items()}


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("vllm", {
            "Mean TTFT (ms)": 2,  # the role chunk counts
            "Mean ITL (ms)": (5 + 40 + 10 + 1) / 4,  # and so does the empty finish
            "Mean TPOT (ms)": (58 - 2) / 6,
            "Mean E2EL (ms)": 58,
            "Benchmark duration (s)": 0.063,
            "Output token throughput (tok/s)": 7 / 0.063,
            "Request throughput (req/s)": 1 / 0.063,
            "Total token throughput (tok/s)": 12 / 0.063,
            "Peak output token throughput (tok/s)": 5,
        }),
        ("aiperf", {
            "Time to First Token (ms) avg": 7,
            "Time to Second Token (ms) avg": 40,
            "Inter Token Latency (ms) avg": (60 - 10) / 6,
            "inter_chunk_latency (ms) avg": 25,
            "Request Latency (ms) avg": 57,
            "Output Token Throughput Per User (tokens/sec/user) avg": 120,
            "benchmark_duration (sec)": 0.057,
            "Output Token Throughput (tokens/sec)": 7 / 0.063,
        }),
        ("guidellm", {
            "TTFT ms Mean": 7,
            "ITL ms Mean": (60 - 10) / 6,
            "TPOT ms Mean": (60 - 3) / 7,
            "Request Latency Sec Mean": 0.060,
            "Dur Sec": 0.060,
            "Output Tokens Per Sec Mean": 7 / 0.060,
            "Requests Per Sec Mean": 1 / 0.060,
            "Requests Concurrency Mean": 1,
        }),
        ("sglang", {
            "Mean TTFT (ms)": 7,
            "Mean ITL (ms)": 25,
            "Mean TPOT (ms)": (60 - 7) / 6,
            "Mean E2E Latency (ms)": 60,
            "Concurrency": 60 / 63,
        }),
        ("genai-bench", {
            "ttft mean": 0.007,
            "tpot mean": (0.059 - 0.007) / 6,
            "e2e_latency mean": 0.059,
        }),
        ("inference-perf", {
            "time_to_first_token mean": 0.007,
            "inter_token_latency mean": 0.050 / 6,
            "inter_token_latency median": 0,
            "time_per_output_token mean": 0.050 / 6,
            "request_latency mean": 0.060,
            "normalized_time_per_output_token mean": 0.060 / 7,
            "benchmark_time_seconds": 0.060,
        }),
        ("mlperf", {
            "Mean First Token latency (ns)": 10e6,
            "Mean latency (ns)": 63e6,
            "Mean Time to Output Token (ns)": 53e6 / 6,
            "Completed tokens per second": 7 / 0.063,
        }),
    ],
)  # fmt: skip
def test_the_worked_example(tool: str, expected: dict[str, float]) -> None:
    figures = values(tool, answer())
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


FAULT = {"outcome": Outcome.STREAM_ERROR, "error": "out of memory", "finish_reason": None}
RESET = {"outcome": Outcome.STREAM_ERROR, "error": "closed", "end": StreamEnd.RESET, "finish_reason": None}
TRUNCATED = {"outcome": Outcome.TRUNCATED, "finish_reason": None}
EMPTY = {"outcome": Outcome.EMPTY, "chunk_ns": [], "chunk_tokens": [], "output_tokens": 0}
REFUSED = {
    "outcome": Outcome.REFUSED, "end": StreamEnd.REFUSED, "status": None, "sent_ns": None, "chunk_ns": [],
    "chunk_tokens": [], "empty_chunk_ns": [], "usage_ns": None, "last_event_ns": None, "output_tokens": None,
}  # fmt: skip
COUNTS = {
    "vllm": "Successful requests", "aiperf": "Request Count (requests)", "guidellm": "Requests Comp",
    "sglang": "Successful requests", "genai-bench": "num_completed_requests", "inference-perf": "successes.count",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "forgiving"),
    [
        (FAULT, {"vllm", "aiperf", "inference-perf"}),
        (RESET, set()),
        (TRUNCATED, set(COUNTS)),
        (EMPTY, {"vllm", "sglang", "inference-perf"}),
        (REFUSED, set()),
        ({"outcome": Outcome.HTTP_ERROR, "status": 500}, set()),
        ({"outcome": Outcome.TIMEOUT, "end": StreamEnd.TIMEOUT}, set()),
    ],
    ids=["error event", "reset", "no finish reason", "no token", "refused", "status 500", "timeout"],
)  # fmt: skip
def test_what_is_a_failure_differs(changes: dict[str, object], forgiving: set[str]) -> None:
    """One successful request beside one that failed."""
    counted = {name for name, figure in COUNTS.items() if values(name, answer(), answer(1, **changes))[figure] == 2}
    assert counted == forgiving


def test_percentiles_differ_on_the_same_four_requests() -> None:
    """TTFT from send of 7, 8, 9 and 20 ms: the median is interpolated, or the lower or upper of the middle two."""
    requests = [
        answer(i, 100 * i, chunk_ns=[(100 * i + first) * MS, (100 * i + 90) * MS], chunk_tokens=[1, 6])
        for i, first in enumerate((10, 11, 12, 23))
    ]
    assert values("sglang", *requests)["Median TTFT (ms)"] == pytest.approx(8.5)
    assert values("guidellm", *requests)["TTFT ms Mdn"] == pytest.approx(8)
    assert values("mlperf", *requests)["50.00 percentile First Token latency (ns)"] == 12e6
    assert values("mlperf", *requests)["99.90 percentile First Token latency (ns)"] == 23e6


def test_guidellm_weighs_a_request_by_its_tokens() -> None:
    """7 tokens after the first at 50/6 ms, and 1 after the first at 30 ms."""
    short = answer(1, chunk_ns=[10 * MS, 40 * MS], chunk_tokens=[1, 1], output_tokens=2)
    figures = values("guidellm", answer(), short)
    assert figures["ITL ms Mean"] == pytest.approx((6 * 50 / 6 + 1 * 30) / 7)
    assert figures["TPOT ms Mean"] == pytest.approx((57 + 37) / 9)


def test_mlperf_counts_to_the_query_that_was_issued_last() -> None:
    late = answer(1, at=10, sent_ns=13 * MS)  # ends at 73; the first, issued earlier, ends at 90
    slow = answer(0, last_event_ns=90 * MS, ended_ns=90 * MS)
    figures = values("mlperf", slow, late)
    assert figures["Completed tokens per second"] == pytest.approx(14 / 0.073)
    assert figures["Completed samples per second"] == pytest.approx(1 / 0.073)


def test_chunks_of_ids_without_text_are_seen_by_vllm_alone() -> None:
    silent = answer(textless_chunks=[0])
    assert values("vllm", silent) == values("vllm", answer())
    assert values("sglang", silent)["Mean TTFT (ms)"] == 47
    assert values("aiperf", silent)["Time to First Token (ms) avg"] == 47
    assert values("guidellm", silent)["TTFT ms Mean"] == pytest.approx(47)
    assert values("genai-bench", silent)["ttft mean"] == pytest.approx(0.047)
    assert values("inference-perf", silent)["time_to_first_token mean"] == pytest.approx(0.047)


def test_sglang_counts_the_tokens_that_were_requested() -> None:
    assert values("sglang", answer(requested_output_tokens=21))["Total generated tokens"] == 21
    assert values("sglang", answer(requested_output_tokens=21))["Mean TPOT (ms)"] == pytest.approx(53 / 20)


@pytest.mark.parametrize("tool", VIEWS)
@pytest.mark.parametrize("requests", [[], [answer(**REFUSED)]], ids=["no request", "none answered"])
def test_without_an_answer_there_is_a_reason_and_no_zero_latency(tool: str, requests: Sequence[RequestRecord]) -> None:
    for name, figure in view(tool, *requests).figures.items():
        if figure.family in {MetricFamily.TTFT, MetricFamily.ITL, MetricFamily.TPOT}:
            assert figure.value.reason, name


def test_what_the_log_does_not_hold_is_said() -> None:
    imported = answer(last_event_ns=None, empty_chunk_ns=[])
    for name in VIEWS:
        is_named = any("no times of chunks without tokens" in line for line in view(name, imported).cannot)
        assert is_named == (name != "vllm"), "an import of the tool's own file holds all that it stamped"
        assert not any("no times of chunks without tokens" in line for line in view(name, answer()).cannot), name
    assert any("own tokenizer" in line for line in view("aiperf", answer()).cannot)
    assert any("own tokenizer" in line for line in view("vllm", answer(usage_in_choice=True)).cannot)
    assert any("closed loop" in line for line in view("mlperf", answer(), load=Load(concurrency=2)).cannot)
    assert any("no failure" in line for line in view("mlperf", answer(), answer(1, **REFUSED)).cannot)
    assert any("asked for" in line for line in view("sglang", answer(requested_output_tokens=None)).cannot)


@pytest.mark.parametrize("tool", VIEWS.values(), ids=lambda tool: tool.name)
def test_every_tool_says_why_for_every_kind_of_figure_that_it_has(tool: object) -> None:
    assert isinstance(tool, type(VIEWS["vllm"]))
    defined = {definition.family for definition in tool.definitions}
    shown = {figure.family for figure in view(tool.name, answer()).figures.values()}
    assert shown - defined <= {MetricFamily.COUNT, MetricFamily.DURATION, MetricFamily.OTHER}
    assert {MetricFamily.TTFT, MetricFamily.E2E, MetricFamily.OUTPUT_RATE, MetricFamily.REQUEST_RATE} <= defined & shown
    for definition in tool.definitions:
        assert definition.why
        assert "\n" not in definition.why
        assert len(definition.why) <= 120, "one line"
