"""The attribution of one profiled trial: each request of its window, their means, and what follows from them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from bakeoff.results.attribution.catalogue import DERIVED_PARTS, SPAN_PARTS, STEP_PARTS, Latency, Part
from bakeoff.results.attribution.clock import ClockCheck, clock_check
from bakeoff.results.attribution.decode_cost import DecodeCost
from bakeoff.results.attribution.energy import PhaseEnergy, has_energy, phase_energy
from bakeoff.results.attribution.parts import ServerTrace, merge_interference, split, split_span
from bakeoff.results.attribution.roofline import Roofline, roofline_of
from bakeoff.results.attribution.steps import Steps, steps_of
from bakeoff.results.log.spans import RequestSpan, SpanFrame, by_answer, request_spans, wall_clock_drift_ns
from bakeoff.results.log.step_costs import TrialCosts
from bakeoff.results.log.step_log import EngineEvent, HttpRecord
from bakeoff.results.machine.ceilings import Ceilings
from bakeoff.results.records import RequestRecord, TelemetryRecord, TrialRecord

MAX_UNATTRIBUTED = 0.02
"""Share of a request's E2E above which it counts as not attributed."""

MIN_RECORDED_SHARE = 0.5
"""Share of the requests that the server recorded below which their means say nothing about all of them."""

_NO_STEPS = "the engine exports spans and not its steps"


class AttributedRequest(msgspec.Struct, frozen=True):
    """One request of the window.

    Attributes:
        index: as in :class:`~bakeoff.results.records.RequestRecord`.
        parts: seconds of each known part, by latency; they sum to it.
        is_recorded: whether the server recorded it; if not, all after the send is unattributed.
    """

    index: int
    parts: dict[Latency, dict[Part, float]]
    is_recorded: bool

    def total_s(self, latency: Latency) -> float:
        """The latency."""
        return sum(self.parts[latency].values())


class Attribution(msgspec.Struct, frozen=True, dict=True):
    """Where the latency of one profiled trial came from.

    Attributes:
        record: of the trial.
        requests: successful requests of the window.
        steps: of each engine process.
        traces: the server's record of requests, by answer id.
        clock: order of the stamps of client and server.
        energy: of the GPUs by phase, or why it is unknown; None without a GPU, or without a record of the server.
        roofline: distance from the machine's limits, or why it is unknown; None without a record of the server.
        missing: why there is no record of the server; None if there is one.
        parts: that the record tells apart, in order of a request's life.
        spans: the engine's spans of requests, by answer id; empty if it records its steps.
        wall_drift_ns: how far the wall clock of the spans moved against the monotonic clock.
        absent: those of the parts that are unknown, with the reason; their time is in other parts.
    """

    record: TrialRecord
    requests: list[AttributedRequest]
    steps: list[Steps]
    traces: dict[str, ServerTrace]
    clock: ClockCheck | None
    energy: PhaseEnergy | str | None
    roofline: Roofline | str | None
    missing: str | None = None
    parts: tuple[Part, ...] = STEP_PARTS
    spans: dict[str, RequestSpan] = {}
    wall_drift_ns: int = 0
    absent: dict[Part, str] = {}

    @property
    def derived(self) -> frozenset[Part]:
        """Parts that follow from durations, without stamps at both ends."""
        return DERIVED_PARTS if self.spans else frozenset()

    @cached_property
    def recorded(self) -> list[AttributedRequest]:
        """The requests that the server recorded."""
        return [request for request in self.requests if request.is_recorded]

    @property
    def not_recorded(self) -> int:
        """Number of requests that the server did not record."""
        return len(self.requests) - len(self.recorded)

    @property
    def unknown(self) -> str | None:
        """Why the mean latency cannot be divided; None if it can."""
        if self.missing or not self.requests:
            return self.missing or "no request of the window succeeded"
        if len(self.recorded) < MIN_RECORDED_SHARE * len(self.requests):
            return f"the server recorded only {len(self.recorded):,} of {len(self.requests):,} requests"
        return None

    @cached_property
    def means(self) -> dict[Latency, dict[Part, float]]:
        """Mean seconds of each part over the requests that the server recorded; empty if :attr:`unknown`."""
        if self.unknown is not None:
            return {}
        count = len(self.recorded)
        return {
            latency: {
                part: sum(r.parts[latency][part] for r in self.recorded) / count
                for part in self.parts
                if part not in self.absent
            }
            for latency in Latency
        }

    def mean_s(self, latency: Latency) -> float:
        """The mean latency."""
        return sum(self.means[latency].values())

    def shares(self, latency: Latency) -> dict[Part, float]:
        """Share of each part in the mean latency, largest first."""
        whole = self.mean_s(latency)
        ordered = sorted(self.means[latency].items(), key=lambda item: -item[1])
        return {part: seconds / whole for part, seconds in ordered}

    @property
    def attributed_share(self) -> float:
        """Share of the requests with at most :data:`MAX_UNATTRIBUTED` of their E2E unattributed."""
        good = sum(
            abs(r.parts[Latency.E2E][Part.UNATTRIBUTED]) <= MAX_UNATTRIBUTED * r.total_s(Latency.E2E)
            for r in self.requests
        )
        return good / len(self.requests) if self.requests else 0.0

    @property
    def cost(self) -> DecodeCost | str:
        """Of decodes alone, in the engine process with the most steps, or why it is unknown."""
        return max(self.steps, key=lambda steps: len(steps.records)).cost if self.steps else _NO_STEPS


def attribution_of(
    record: TrialRecord,
    answered: Sequence[RequestRecord],
    events: Sequence[Sequence[EngineEvent]],
    front_end: Iterable[HttpRecord],
    *,
    spans: Sequence[SpanFrame] = (),
    telemetry: Sequence[TelemetryRecord] = (),
    costs: TrialCosts | str | None = None,
    ceilings: Sequence[Ceilings] | str = (),
    missing: str | None = None,
) -> Attribution:
    """Attribute the latency of one trial.

    Args:
        record: of the trial.
        answered: successful requests of the window.
        events: of each engine process.
        front_end: of the HTTP process.
        spans: record of an engine that exports spans instead.
        telemetry: samples.
        costs: bytes and operations of the steps, or why they cannot be read.
        ceilings: of the machine's devices, or why they cannot be read; empty if they were not measured.
        missing: why there is no record of the server.

    Raises:
        RunUnreadable: the record of spans is damaged.
    """
    if spans:
        return _by_spans(record, answered, spans, telemetry, missing)
    steps = [steps_of(process) for process in events]
    traces = _traces(steps, front_end)
    known = {request.index: traces.get(request.answer_id or "") for request in answered}
    reasons = [reason for part in steps if (reason := part.excess_missing) is not None]
    absent = {Part.INTERFERENCE: reasons[0]} if reasons else {}
    requests = [_request(request, known[request.index], absent) for request in answered if request.chunk_ns]
    if missing is not None and not steps:
        return Attribution(record, requests, [], {}, None, None, None, missing)
    pairs = [(request, trace) for request in answered if request.chunk_ns and (trace := known[request.index])]
    return Attribution(
        record, requests, steps, traces, clock_check(pairs), _energy(steps, telemetry, record),
        roofline_of(steps, costs, ceilings, record.window, telemetry), missing, absent=absent,
    )  # fmt: skip


def _request(request: RequestRecord, trace: ServerTrace | None, absent: Mapping[Part, str]) -> AttributedRequest:
    parts = {latency: split(request, trace, latency) for latency in Latency}
    if Part.INTERFERENCE in absent:
        parts = {latency: merge_interference(of) for latency, of in parts.items()}
    return AttributedRequest(request.index, parts, is_recorded=trace is not None and trace.is_complete)


def _by_spans(
    record: TrialRecord,
    answered: Sequence[RequestRecord],
    frames: Sequence[SpanFrame],
    telemetry: Sequence[TelemetryRecord],
    missing: str | None,
) -> Attribution:
    spans = by_answer(request_spans(frames))
    known = [(request, spans.get(request.answer_id or "")) for request in answered if request.chunk_ns]
    requests = [
        AttributedRequest(
            request.index,
            {latency: split_span(request, span, latency) for latency in Latency},
            is_recorded=span is not None,
        )
        for request, span in known
    ]
    if known and not any(span for _, span in known):
        missing = missing or "no span of the engine belongs to a request of the window"
    clock = clock_check([(request, span) for request, span in known if span])
    drift_ns = wall_clock_drift_ns(frames)
    return Attribution(
        record,
        requests,
        [],
        {},
        clock,
        _NO_STEPS if has_energy(telemetry, record.window) else None,
        _NO_STEPS,
        missing,
        SPAN_PARTS,
        spans,
        drift_ns,
    )


def _energy(
    steps: Sequence[Steps], telemetry: Sequence[TelemetryRecord], record: TrialRecord
) -> PhaseEnergy | str | None:
    if len(steps) == 1:
        return phase_energy(steps[0], telemetry, record.window)
    return "several engine processes compute at the same time" if len(steps) > 1 else None


def _traces(steps: Sequence[Steps], front_end: Iterable[HttpRecord]) -> dict[str, ServerTrace]:
    """The server's record of each request with one sequence, by the id of its answer."""
    own: Mapping[str, tuple[Steps, str]] = {name: (part, name) for part in steps for name in part.requests}
    traces: dict[str, ServerTrace] = {}
    for http in front_end:
        (name, *others) = http.request_ids
        if not others and name in own and own[name][0].requests[name].output_steps:
            part = own[name][0]
            traces[name.rpartition("-")[0]] = ServerTrace(http, part, part.requests[name])
    return traces
