"""Spans that vLLM exported, and the attribution from them, against a simulated engine whose true phases are known."""

import io
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rich.console import Console

from bakeoff.results.attribution import Attribution, Latency, Part, attribution_of
from bakeoff.results.attribution.bottleneck import Bottleneck, bottleneck, what_if
from bakeoff.results.attribution.catalogue import SPAN_PARTS
from bakeoff.results.attribution.difference import differences
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.log.spans import ClockReading, RequestSpan, SpanBatch, SpanFrame, by_answer, request_spans
from bakeoff.results.log.step_log import RequestQueued, StepRecord
from bakeoff.results.records import Outcome, Phase, RequestRecord, TelemetryRecord
from bakeoff.results.report.difference_table import print_differences
from bakeoff.results.text.attribution import (
    bottleneck_sentence,
    clock_line,
    cost_line,
    coverage_line,
    energy_line,
    part_rows,
    span_lines,
)
from bakeoff.results.text.roofline import limit_lines
from bakeoff.results.trace.trial import trial_trace
from tests.results.step_simulation import Outcomes, Simulated, simulate, trial_record
from tests.results.trace.test_trace import Parsed

RECORDED = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "spans").glob("vllm-0.32.0-*.bin"))]
"""Bodies of vLLM 0.32.0: a chat, a completion, and a completion of two prompts."""
AHEAD_NS = 1_795_551_379_207_511_684
"""Wall clock minus monotonic clock when the bodies arrived."""
SECONDS = {
    "time_to_first_token": lambda s: s.first_ns - s.arrival_ns,
    "e2e": lambda s: s.last_ns - s.arrival_ns,
    "time_in_queue": lambda s: s.queue_ns,
    "time_in_model_prefill": lambda s: s.prefill_ns,
    "time_in_model_decode": lambda s: s.decode_ns,
}
COMPUTED = (Part.PREFILL, Part.STALL, Part.DECODE, Part.INTERFERENCE, Part.BUBBLES)
"""Parts of the time between the first step of a request and its last."""
REPORT_MS = 1e-3
"""From the end of a simulated step until the front end has its tokens."""
NO_BATCH: list[SpanFrame] = [ClockReading(0, 0)]


def body(*spans: RequestSpan, ahead_ns: int = 0) -> bytes:
    """An export request with these spans."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.spans.add(name="load_model", start_time_unix_nano=1)
    for span in spans:
        made = scope.spans.add(name="llm_request", start_time_unix_nano=span.arrival_ns + ahead_ns)
        made.attributes.add(key="gen_ai.request.id").value.string_value = span.request_id
        for name, duration_ns in SECONDS.items():
            made.attributes.add(key=f"gen_ai.latency.{name}").value.double_value = duration_ns(span) / 1e9
    return request.SerializeToString()


def spans_of(outcome: Outcomes) -> list[RequestSpan]:
    """The spans that vLLM would report of a simulation, from its raw records."""
    queued = {event.request_id: event for event in outcome.events if isinstance(event, RequestQueued)}
    steps = [event for event in outcome.events if isinstance(event, StepRecord)]
    spans: list[RequestSpan] = []
    for http in outcome.front_end:
        request = queued[http.request_ids[0]]
        own = [(step, chunk) for step in steps for chunk in step.chunks if chunk.request == request.number]
        start_ns = own[0][0].planned_ns
        first_ns = next(step.collected_ns for step, chunk in own if chunk.output_tokens)
        last_ns = own[-1][0].collected_ns
        spans.append(
            RequestSpan(
                request.request_id, http.received_ns, http.writes[0].reported_ns, http.writes[-1].reported_ns,
                start_ns - http.parsed_ns, first_ns - start_ns, last_ns - first_ns,
            )
        )  # fmt: skip
    return spans


def by_spans(outcome: Outcomes, frames: list[SpanFrame] | None = None) -> Attribution:
    recorded = frames or [ClockReading(0, 7), SpanBatch(1, body(*spans_of(outcome), ahead_ns=7))]
    return attribution_of(trial_record(), outcome.requests, [], [], spans=recorded)


def test_a_real_body_is_read_on_the_monotonic_clock():
    frames = [ClockReading(11_246_000_000_000, AHEAD_NS), *(SpanBatch(0, data) for data in RECORDED)]
    spans = {span.request_id: span for span in request_spans(frames)}
    assert list(spans) == [
        "cmpl-9dd2ad5bf3104549-0", "cmpl-9dd2ad5bf3104549-1", "chatcmpl-ac28c2cd61fcf478", "cmpl-bc02c49901eecef9-0",
    ]  # fmt: skip
    span = spans["cmpl-bc02c49901eecef9-0"]
    assert span.arrival_ns == 1795562625797633280 - AHEAD_NS
    assert (span.first_ns - span.arrival_ns, span.last_ns - span.arrival_ns) == (38_786_173, 278_733_730)
    assert (span.queue_ns, span.prefill_ns, span.decode_ns) == (21_922, 32_085_125, 239_950_904)
    assert set(by_answer(list(spans.values()))) == {"chatcmpl-ac28c2cd61fcf478", "cmpl-bc02c49901eecef9"}
    assert by_answer([span, span]) == {"cmpl-bc02c49901eecef9": span}  # exported twice
    assert by_answer([span, msgspec.structs.replace(span, decode_ns=1)]) == {}  # n = 2: both have this id


def test_the_wall_clock_may_be_set_during_a_trial():
    stepped = [
        ClockReading(0, 5_000),
        ClockReading(1_000, 5_000),
        ClockReading(1_001, 90_000),
        ClockReading(2_000, 90_000),
    ]
    early, late = RequestSpan("a-0", 500, 600, 700, 1, 2, 3), RequestSpan("b-0", 1_500, 1_600, 1_700, 1, 2, 3)
    bodies = [SpanBatch(0, body(early, ahead_ns=5_000)), SpanBatch(0, body(late, ahead_ns=90_000))]
    assert request_spans([*stepped, *bodies])[0] == early
    assert request_spans([*reversed(bodies), *stepped])[1] == early
    assert by_spans(simulate(Simulated(requests=1)), [*stepped, *bodies]).wall_drift_ns == 85_000


def test_a_damaged_record_is_refused_in_one_line():
    span = RequestSpan("a-0", 1, 2, 3, 0, 0, 0)
    for data, message in (
        (b"\x0a\xff", "damaged body"),
        (
            body(span).replace(b"gen_ai.latency.e2e", b"gen_ai.latency.E2E"),
            "lack gen_ai.latency.e2e; profile a version",
        ),
        (body(span).replace(b"gen_ai.request.id", b"gen_ai.request.ID"), "lack gen_ai.request.id"),
    ):
        with pytest.raises(RunUnreadable, match=message):
            request_spans([ClockReading(0, 0), SpanBatch(0, data)])
    with pytest.raises(RunUnreadable, match="no reading of the clocks"):
        request_spans([SpanBatch(0, body(span))])
    request = ExportTraceServiceRequest.FromString(body(span))
    request.resource_spans[0].scope_spans[0].spans[1].attributes[1].value.double_value = float("nan")
    with pytest.raises(RunUnreadable, match="time_to_first_token = nan"):
        request_spans([ClockReading(0, 0), SpanBatch(0, request.SerializeToString())])


@pytest.mark.parametrize(
    ("setup", "planted"),
    [
        (Simulated(), Part.DECODE_PHASE),
        (Simulated(client_ms=400.0), Part.CLIENT),
        (Simulated(detokenise_ms=400.0), Part.DELIVERY),
        (Simulated(front_end_ms=400.0), Part.HANDOVER),
        (Simulated(slots=2, every_ms=50.0), Part.QUEUE),
        (Simulated(prefill_ms=2.0, output_tokens=4, every_ms=450.0), Part.PREFILL_PHASE),
    ],
)
def test_parts_sum_to_each_latency_and_a_planted_delay_is_named(setup: Simulated, planted: Part):
    outcome = simulate(setup)
    attribution = by_spans(outcome)
    for request in attribution.requests:
        for latency in Latency:
            assert tuple(request.parts[latency]) == SPAN_PARTS
            assert request.parts[latency][Part.UNATTRIBUTED] == pytest.approx(0.0, abs=1e-7)
    computed_ms = sum(outcome.truth_ms(part) for part in COMPUTED if part in outcome.truth_ns)
    expected_ms = {
        Part.CLIENT: setup.client_ms,
        Part.ARRIVAL: setup.network_ms,
        Part.HANDOVER: setup.front_end_ms + REPORT_MS,
        Part.QUEUE: outcome.truth_ms(Part.QUEUE),
        Part.DELIVERY: setup.detokenise_ms - REPORT_MS + setup.network_ms,
    }
    means = attribution.means[Latency.E2E]
    assert {part: 1e3 * means[part] for part in expected_ms} == pytest.approx(expected_ms, abs=1e-4)
    assert 1e3 * (means[Part.PREFILL_PHASE] + means[Part.DECODE_PHASE]) == pytest.approx(computed_ms, abs=1e-4)
    assert attribution.means[Latency.TTFT] == pytest.approx(
        {**means, Part.DECODE_PHASE: 0.0, Part.UNATTRIBUTED: 0.0}, abs=1e-7
    )
    named = bottleneck(attribution)
    assert isinstance(named, Bottleneck)
    assert named.part is planted
    assert what_if(attribution)[0].kept == (0.5 if planted in {Part.DECODE_PHASE, Part.PREFILL_PHASE} else 0.0)


def test_one_request_is_divided_as_by_hand() -> None:
    """Planned at 1,000 ns, sent at 1,100, arrived at 1,250; tokens at 2,000 and 5,000, read at 2,060 and 5,040."""
    request = RequestRecord(
        index=3, phase=Phase.MEASURED, session="s", turn=0, planned_ns=1_000, sent_ns=1_100, ended_ns=5_050,
        outcome=Outcome.OK, chunk_ns=[2_060, 5_040], chunk_tokens=[1, 1], answer_id="cmpl-a",
    )  # fmt: skip
    span = RequestSpan("cmpl-a-0", 1_250, 2_000, 5_000, queue_ns=30, prefill_ns=600, decode_ns=2_900)
    recorded = [ClockReading(0, 7), SpanBatch(1, body(span, ahead_ns=7))]
    (divided,) = attribution_of(trial_record(), [request], [], [], spans=recorded).requests
    parts_ns = {
        latency: {part: round(1e9 * s) for part, s in parts.items()} for latency, parts in divided.parts.items()
    }
    assert parts_ns[Latency.TTFT] == {
        Part.CLIENT: 100, Part.ARRIVAL: 150, Part.HANDOVER: 750 - 30 - 600, Part.QUEUE: 30, Part.PREFILL_PHASE: 600,
        Part.DECODE_PHASE: 0, Part.DELIVERY: 60, Part.UNATTRIBUTED: 0,
    }  # fmt: skip
    assert parts_ns[Latency.E2E] == {
        Part.CLIENT: 100, Part.ARRIVAL: 150, Part.HANDOVER: 3_750 - 30 - 600 - 2_900, Part.QUEUE: 30,
        Part.PREFILL_PHASE: 600, Part.DECODE_PHASE: 2_900, Part.DELIVERY: 40, Part.UNATTRIBUTED: 0,
    }  # fmt: skip


def test_what_is_derived_and_what_is_absent_is_said():
    attribution = by_spans(simulate(Simulated()))
    titles = {part: title for part, title, _ in part_rows(attribution)}
    assert {part for part, title in titles.items() if title.endswith(" *")} == {
        Part.QUEUE, Part.HANDOVER, Part.PREFILL_PHASE, Part.DECODE_PHASE,
    }  # fmt: skip
    assert bottleneck_sentence(attribution).startswith("Bottleneck: decode phase, ")
    assert "all 200 pairs of stamps are in order" in clock_line(attribution.clock)
    derived, absent = span_lines(attribution)
    assert derived.startswith("* derived from durations")
    assert absent.startswith("vLLM does not report its steps")
    assert cost_line(attribution) == ""
    assert span_lines(simulate(Simulated()).attribution()) == []


def test_requests_without_a_span_stay_unattributed():
    outcome = simulate(Simulated())
    spans = spans_of(outcome)[1:]
    attribution = by_spans(outcome, [ClockReading(0, 0), SpanBatch(0, body(*spans))])
    assert attribution.attributed_share == pytest.approx(39 / 40)
    empty = by_spans(outcome, NO_BATCH)
    assert empty.missing == "no span of the engine belongs to a request of the window"
    assert bottleneck_sentence(empty) == f"nothing to attribute: {empty.missing}"
    attribution = attribution_of(trial_record(), [], [], [], spans=NO_BATCH)
    assert bottleneck_sentence(attribution) == "nothing to attribute: no request of the window succeeded"
    assert empty.means == {}
    assert empty.requests[0].parts[Latency.E2E][Part.CLIENT] == pytest.approx(0.1e-3)


def test_an_incomplete_span_leaves_only_its_request_unattributed():
    outcome = simulate(Simulated())
    first, *others = spans_of(outcome)
    aborted = body(first).replace(b"gen_ai.latency.e2e", b"gen_ai.latency.E2E")
    attribution = by_spans(outcome, [ClockReading(0, 0), SpanBatch(0, aborted), SpanBatch(1, body(*others))])
    assert attribution.missing is None
    assert attribution.attributed_share == pytest.approx(39 / 40)


def test_energy_by_phase_is_unknown_where_a_gpu_was_sampled():
    outcome = simulate(Simulated(requests=2))
    recorded = [ClockReading(0, 0), SpanBatch(1, body(*spans_of(outcome)))]
    sampled = [TelemetryRecord(t_ns, "gpu0", {"energy_j": float(t_ns)}) for t_ns in (1, 2, 3)]
    on_gpu = attribution_of(trial_record(), outcome.requests, [], [], spans=recorded, telemetry=sampled)
    assert energy_line(on_gpu.energy) == (
        "energy by phase: unknown, because the engine exports spans and not its steps"
    )
    assert energy_line(by_spans(outcome).energy) == ""


def test_without_any_record_only_its_absence_is_reported():
    outcome = simulate(Simulated())
    attribution = attribution_of(trial_record(), outcome.requests, [], [], missing="no span arrived")
    assert attribution.missing == "no span arrived"
    assert cost_line(attribution) == ""
    assert limit_lines(attribution.roofline) == []
    assert energy_line(attribution.energy) == ""
    assert coverage_line(attribution).endswith("; no span arrived")


def test_steps_and_spans_are_compared_by_the_parts_that_both_have():
    outcome = simulate(Simulated(slots=4))
    steps, spans = outcome.attribution(), by_spans(outcome)
    (difference,) = differences([steps], [spans])
    assert difference.merged
    assert difference.total_s(Latency.E2E) == pytest.approx((steps.mean_s(Latency.E2E),) * 2)
    for latency in Latency:
        assert max(abs(change) for change in difference.changes_s(latency).values()) < 1e-6
    console = Console(width=120, record=True, file=io.StringIO())
    print_differences([difference], console)
    text = console.export_text()
    assert "prefill phase" in text
    assert "merged" in text
    (alike,) = differences([spans], [spans])
    assert not alike.merged
    assert set(alike.before_s[Latency.E2E]) == set(SPAN_PARTS)


def test_the_trace_shows_phases_of_spans_as_derived():
    outcome = simulate(Simulated(requests=3))
    span = spans_of(outcome)[1]
    slices = Parsed(trial_trace(by_spans(outcome), outcome.requests, [])).slices("server, by request/request 1")
    names = {name: (start, end) for _, name, start, end in slices}
    assert names["request"] == (span.arrival_ns, span.last_ns)
    assert names["prefill (derived)"] == (span.first_ns - span.prefill_ns, span.first_ns)
    assert names["decode (derived)"] == (span.first_ns, span.first_ns + span.decode_ns)
    assert names["front end ⇄ engine (derived)"][0] == span.arrival_ns
