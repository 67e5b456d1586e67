"""The trace of one profiled trial: client, server, engine and telemetry on the monotonic clock of the host."""

from collections.abc import Iterable, Sequence

from bakeoff.results.attribution import Attribution
from bakeoff.results.attribution.parts import ServerTrace
from bakeoff.results.attribution.steps import Steps, is_decode
from bakeoff.results.log.spans import RequestSpan
from bakeoff.results.metrics.series import rates
from bakeoff.results.records import Phase, RequestRecord, TelemetryRecord
from bakeoff.results.requests import Requests
from bakeoff.results.trace.kernels import KernelRecord
from bakeoff.results.trace.perfetto import Trace, Track

_UNITS = {"_bytes_per_s": "B/s", "_bytes": "B", "_share": "", "_w": "W", "_mhz": "MHz", "_c": "°C"}
"""Units by the end of a telemetry value's name; other values are not drawn."""
_COUNTERS = {"cpu_s": "cores", "_tx_bytes": "B/s", "_rx_bytes": "B/s", "_s": "share of time"}
"""The same for counters, which are drawn as their increase per second."""
_HALF_A_TICK_NS = 50_000_000
"""Half a tick of the sampler. Its closing reading may come at any time after its last tick."""
_PHASES = {Phase.WARMUP: "warm-up ", Phase.RAMP: "ramp ", Phase.MEASURED: "", Phase.TAIL: "tail "}
_SAMPLED = ("host", "engine", "client", "gpu")


def trial_trace(
    attribution: Attribution,
    requests: Sequence[RequestRecord],
    telemetry: Sequence[TelemetryRecord],
    kernels: Sequence[KernelRecord] = (),
) -> bytes:
    """Build the trace of a trial.

    Args:
        attribution: of the trial, with the server's record.
        requests: all requests of the trial, ramp and tail included.
        telemetry: samples.
        kernels: recorded after the trial.
    """
    trace = Trace()
    client, server = trace.process("client"), trace.process("server, by request")
    for request in requests:
        server_trace = attribution.traces.get(request.answer_id or "")
        _client(trace, trace.track(_name(request), client), request)
        if server_trace is not None:
            _server(trace, trace.track(_name(request), server), request, server_trace)
        if span := attribution.spans.get(request.answer_id or ""):
            _derived(trace, trace.track(_name(request), server), request, span)
    for number, steps in enumerate(attribution.steps):
        flows = _flows(steps, requests, attribution)
        _engine(trace, trace.process(f"engine {number}"), steps, flows)
    for number, record in enumerate(kernels):
        process = trace.process(f"engine {number} after the trial, with kernels")
        if record.steps is not None:
            _engine(trace, process, record.steps, {})
        _kernels(trace, process, record)
    _telemetry(trace, telemetry)
    return trace.encoded()


def _name(request: RequestRecord) -> str:
    # Requests of the ramp and of the warm-up have indices below zero.
    return f"{_PHASES[request.phase]}request {abs(request.index)}"


def _flow(request: RequestRecord) -> int:
    """Id of the flow that follows a request; indices can be negative, ids cannot be 0."""
    return (request.index << 1) + 1


def _client(trace: Trace, track: Track, request: RequestRecord) -> None:
    end_ns = request.ended_ns
    arguments = {"outcome": request.outcome.value, "phase": request.phase.value, "session": request.session}
    trace.slice(track, "request", request.planned_ns, end_ns, arguments)
    sent_ns = end_ns if request.sent_ns is None else request.sent_ns
    trace.slice(track, "wait in client", request.planned_ns, sent_ns)
    first_ns = request.chunk_ns[0] if request.chunk_ns else end_ns
    trace.slice(track, "wait for first token", sent_ns, first_ns, flows=[_flow(request)])
    if request.chunk_ns:
        trace.slice(track, "stream", first_ns, request.chunk_ns[-1], flows=[_flow(request)])
    reads = Requests([request]).chunks.reads
    arrived = list(zip(reads.ns.tolist(), reads.tokens.tolist(), strict=True))
    for number, (t_ns, tokens) in enumerate(arrived, start=1):
        # A flow ends at its last mark, since a viewer draws no arrow behind its end.
        ends = [_flow(request)] if number == len(arrived) else ()
        trace.instant(track, "chunk", t_ns, {"tokens": tokens}, ends=ends)


def _server(trace: Trace, track: Track, request: RequestRecord, known: ServerTrace) -> None:
    steps, own, http = known.steps, known.own, known.http
    begin_ns = int(steps.start_ns[own.first_step])
    submitted_ns = own.queued.submitted_ns or http.parsed_ns
    trace.slice(track, "front end", http.received_ns, submitted_ns, flows=[_flow(request)])
    trace.slice(track, "queue", submitted_ns, begin_ns)
    for step, chunk in own.chunks.items():
        kind = "decode" if is_decode(chunk, own.queued) else f"prefill {chunk.new_tokens} tokens"
        trace.slice(track, kind, int(steps.start_ns[step]), int(steps.end_ns[step]), {"step": step})
    for write in http.writes:
        trace.instant(track, "write", write.written_ns, {"tokens": write.tokens})


def _derived(trace: Trace, track: Track, request: RequestRecord, span: RequestSpan) -> None:
    """The phases of a span, placed so that prefill ends when the front end received the first token."""
    trace.slice(track, "request", span.arrival_ns, span.last_ns, {"id": span.request_id}, flows=[_flow(request)])
    prefill_ns = max(span.arrival_ns, span.first_ns - span.prefill_ns)
    queue_ns = max(span.arrival_ns, prefill_ns - span.queue_ns)
    decoded_ns = min(span.last_ns, span.first_ns + span.decode_ns)
    phases = (
        ("front end ⇄ engine", span.arrival_ns, queue_ns),
        ("queue", queue_ns, prefill_ns),
        ("prefill", prefill_ns, span.first_ns),
        ("decode", span.first_ns, decoded_ns),
    )
    for name, start_ns, end_ns in phases:
        trace.slice(track, f"{name} (derived)", start_ns, end_ns)


def _flows(steps: Steps, requests: Sequence[RequestRecord], attribution: Attribution) -> dict[int, list[int]]:
    """The flows through each step: a request passes through its first and its last one."""
    flows: dict[int, list[int]] = {}
    for request in requests:
        server_trace = attribution.traces.get(request.answer_id or "")
        if server_trace is not None and server_trace.steps is steps:
            for step in {server_trace.own.first_step, server_trace.own.output_steps[-1]}:
                flows.setdefault(step, []).append(_flow(request))
    return flows


def _engine(trace: Trace, process: Track, steps: Steps, flows: dict[int, list[int]]) -> None:
    track = trace.track("steps", process)
    queued = {own.queued.number: own.queued for own in steps.requests.values()}
    is_unknown = steps.excess_missing is not None
    for position, record in enumerate(steps.records):
        start_ns, end_ns = int(steps.start_ns[position]), int(steps.end_ns[position])
        decodes = [chunk for chunk in record.chunks if is_decode(chunk, queued[chunk.request])]
        prompt = sum(chunk.new_tokens for chunk in record.chunks) - sum(chunk.new_tokens for chunk in decodes)
        name = " + ".join(
            part for part in (f"{len(decodes)} decodes" if decodes else "", f"{prompt} prompt tokens" if prompt else "")
            if part
        ) or "no work"  # fmt: skip
        arguments: dict[str, int | str] = {"step": record.number}
        if not is_unknown:
            arguments["excess of prompts (µs)"] = round(float(steps.excess_ns[position]) / 1e3)
        trace.slice(track, name, start_ns, end_ns, arguments, flows=flows.get(position, ()))
        if start_ns < record.launched_ns < end_ns:
            trace.slice(track, "plan and launch", start_ns, record.launched_ns)
            trace.slice(track, "collect", record.launched_ns, end_ns)
    for name, unit in (("running", "requests"), ("waiting", "requests"), ("used_blocks", "blocks")):
        values = ((record.collected_ns, float(getattr(record, name))) for record in steps.records)
        trace.counter(name.replace("_", " "), unit, process, values)


def _kernels(trace: Trace, process: Track, record: KernelRecord) -> None:
    tracks: dict[str, Track] = {}
    for kernel, end_ns, _ in record.nested():
        if kernel.lane not in tracks:
            tracks[kernel.lane] = trace.track(kernel.lane, process)
        trace.slice(tracks[kernel.lane], kernel.name, kernel.start_ns, end_ns)


def _telemetry(trace: Trace, telemetry: Sequence[TelemetryRecord]) -> None:
    """Samples of the machine; counters are drawn as their increase per second, and XID errors as marks."""
    by_source: dict[str, list[TelemetryRecord]] = {}
    for record in telemetry:
        if record.source.startswith(_SAMPLED) and record.source != "client_loop":
            by_source.setdefault(record.source, []).append(record)
    for source, records in by_source.items():
        process = trace.process(f"telemetry of {source}")
        for name in dict.fromkeys(name for record in records for name in record.values):
            values = _values(records, name)
            if not values:
                continue
            if name == "xid":
                track = trace.track("errors", process)
                for t_ns, xid in values:
                    trace.instant(track, f"XID {xid:.0f}", t_ns)
            elif not name.endswith("_per_s") and (end := _end(name, _COUNTERS)):
                title = "CPU" if name == "cpu_s" else name.rpartition("_")[0]
                # A value of a counter holds until the next one, so a rate is stamped with the start of its interval.
                starts = [(rate.start_ns, rate.per_s) for rate in rates(values, _HALF_A_TICK_NS)]
                trace.counter(title, _COUNTERS[end], process, starts)
            elif end := _end(name, _UNITS):
                trace.counter(name, _UNITS[end], process, values)


def _end(name: str, ends: Iterable[str]) -> str | None:
    return next((end for end in ends if name.endswith(end)), None)


def _values(records: Iterable[TelemetryRecord], name: str) -> list[tuple[int, float]]:
    pairs = ((record.t_ns, record.values.get(name)) for record in records)
    return [(t_ns, float(value)) for t_ns, value in pairs if isinstance(value, int | float)]
