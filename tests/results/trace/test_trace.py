"""Perfetto traces, read by Perfetto's own protobuf classes."""

from collections import Counter, defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from bakeoff.results.records import Phase, TelemetryRecord
from bakeoff.results.trace.perfetto import Trace
from bakeoff.results.trace.trial import trial_trace
from tests.results.step_simulation import MS, Outcomes, Simulated, simulate

perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
BEGIN, END, INSTANT, COUNTER = (getattr(perfetto.TrackEvent, f"TYPE_{kind}") for kind in
                                ("SLICE_BEGIN", "SLICE_END", "INSTANT", "COUNTER"))  # fmt: skip
TELEMETRY = [
    TelemetryRecord(t_ns=i * 100 * MS, source=source, values=values)
    for i in range(3)
    for source, values in (
        ("engine", {"cpu_s": 0.15 * i, "rss_bytes": 1000 + i, "processes": 2}),
        (
            "gpu0",
            {
                "power_w": 300.0 + i,
                "memory_used_bytes": None,
                "power_cap_s": 0.05 * i,
                "pcie_tx_bytes": 2_000 * i,
                "gpm_pcie_tx_bytes_per_s": 19_000.0,
                "ecc_corrected_errors": 0,
            },
        ),
        ("gpu0", {"xid": 31}),
        ("server", {"running": 3.0}),
    )
]


class Parsed:
    """A trace, divided by tracks."""

    def __init__(self, data: bytes) -> None:
        trace = perfetto.Trace.FromString(data)
        described = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
        self.descriptors = {descriptor.uuid: descriptor for descriptor in described}
        self.events: dict[int, list[Any]] = defaultdict(list)
        self.flows: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.flowed_at: dict[int, int] = {}
        self.ended_at: dict[int, int] = {}
        times = []
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_event"):
                times.append(packet.timestamp)
                self.events[packet.track_event.track_uuid].append(packet)
                self.flows.update(packet.track_event.flow_ids)
                self.ended.update(packet.track_event.terminating_flow_ids)
                self.flowed_at |= dict.fromkeys(packet.track_event.flow_ids, packet.timestamp)
                self.ended_at |= dict.fromkeys(packet.track_event.terminating_flow_ids, packet.timestamp)
        assert times == sorted(times)

    def path(self, uuid: int) -> str:
        descriptor = self.descriptors[uuid]
        name = descriptor.name or descriptor.process.process_name
        return f"{self.path(descriptor.parent_uuid)}/{name}" if descriptor.parent_uuid else name

    def slices(self, path: str) -> list[tuple[int, str, int, int]]:
        """Depth, name, start and end, in order of their ends."""
        (uuid,) = [uuid for uuid in self.descriptors if self.path(uuid) == path]
        slices, stack = [], []
        for packet in self.events[uuid]:
            if packet.track_event.type == BEGIN:
                stack.append((len(stack), packet.track_event.name, packet.timestamp))
            elif packet.track_event.type == END:
                slices.append((*stack.pop(), packet.timestamp))
        assert stack == []
        return slices

    def counter(self, path: str) -> list[tuple[int, float]]:
        (uuid,) = [uuid for uuid in self.descriptors if self.path(uuid) == path]
        assert self.descriptors[uuid].HasField("counter")
        assert {packet.track_event.type for packet in self.events[uuid]} == {COUNTER}
        return [(packet.timestamp, packet.track_event.double_counter_value) for packet in self.events[uuid]]


def parsed() -> tuple[Parsed, Outcomes]:
    outcome = simulate(Simulated(requests=4))
    return Parsed(trial_trace(outcome.attribution(), outcome.requests, TELEMETRY)), outcome


def test_slices_nest_and_say_what_happened_when() -> None:
    trace, outcome = parsed()
    for uuid in trace.events:
        kinds = Counter(packet.track_event.type for packet in trace.events[uuid])
        assert kinds[BEGIN] == kinds[END]
    request = outcome.requests[2]
    assert trace.slices("client/request 2") == [
        (1, "wait in client", request.planned_ns, request.sent_ns),
        (1, "wait for first token", request.sent_ns, request.chunk_ns[0]),
        (1, "stream", request.chunk_ns[0], request.chunk_ns[-1]),
        (0, "request", request.planned_ns, request.ended_ns),
    ]
    names = [name for _, name, _, _ in trace.slices("server, by request/request 0")]
    assert names == ["front end", "prefill 128 tokens", "prefill 72 tokens", *["decode"] * 19]
    queued = outcome.events[2].submitted_ns
    first = next(step.planned_ns for step in outcome.events[4:] if any(chunk.request == 2 for chunk in step.chunks))
    assert (0, "queue", queued, first) in trace.slices("server, by request/request 2")
    depths = {depth for depth, *_ in trace.slices("engine 0/steps")}
    assert depths == {0, 1}
    steps = [name for depth, name, _, _ in trace.slices("engine 0/steps") if depth == 0]
    assert steps[:2] == ["128 prompt tokens", "72 prompt tokens"]


def test_every_flow_goes_from_client_through_server_and_steps_back_to_the_client() -> None:
    trace, _ = parsed()
    assert trace.ended == {1: 1, 3: 1, 5: 1, 7: 1}
    # wait for the first token, front end, first and last step, stream
    assert trace.flows == {1: 5, 3: 5, 5: 5, 7: 5}
    assert all(trace.ended_at[flow] >= last for flow, last in trace.flowed_at.items())


def test_counters_of_the_engine_and_of_telemetry() -> None:
    trace, outcome = parsed()
    steps = outcome.events[4:]
    assert trace.counter("engine 0/running") == [(step.collected_ns, step.running) for step in steps]
    assert trace.counter("engine 0/used blocks")[0][1] == 10.0
    assert trace.counter("telemetry of engine/CPU") == [(0, 1.5), (100 * MS, 1.5)]
    assert trace.counter("telemetry of engine/rss_bytes") == [(0, 1000.0), (100 * MS, 1001.0), (200 * MS, 1002.0)]
    assert trace.counter("telemetry of gpu0/power_w") == [(0, 300.0), (100 * MS, 301.0), (200 * MS, 302.0)]
    paths = {trace.path(uuid) for uuid in trace.descriptors}
    assert trace.counter("telemetry of gpu0/power_cap") == [(0, 0.5), (100 * MS, 0.5)], "share of time"
    assert trace.counter("telemetry of gpu0/pcie_tx") == [(0, 20_000.0), (100 * MS, 20_000.0)]
    assert trace.counter("telemetry of gpu0/gpm_pcie_tx_bytes_per_s")[0] == (0, 19_000.0)
    assert {path for path in paths if path.startswith("telemetry of gpu0/")} == {
        f"telemetry of gpu0/{name}" for name in ("power_w", "power_cap", "pcie_tx", "gpm_pcie_tx_bytes_per_s", "errors")
    }
    assert "telemetry of server" not in paths


def test_the_closing_reading_right_after_the_last_tick_makes_no_spike() -> None:
    """2 kB in 0.1 ms would be 20 MB/s; a final reading counts only after half a tick."""
    outcome = simulate(Simulated(requests=4))
    times = {0: 0, 100 * MS: 2_000, 200 * MS: 4_000, 200 * MS + MS // 10: 6_000, 250 * MS: 7_000}
    telemetry = [TelemetryRecord(t_ns, "gpu0", {"pcie_tx_bytes": sent}) for t_ns, sent in times.items()]
    trace = Parsed(trial_trace(outcome.attribution(), outcome.requests, telemetry))
    assert trace.counter("telemetry of gpu0/pcie_tx") == [
        (0, 20_000.0), (100 * MS, 20_000.0), (200 * MS, 60_000.0),
    ]  # fmt: skip


def test_errors_of_a_gpu_are_marks() -> None:
    trace, _ = parsed()
    (uuid,) = [uuid for uuid in trace.descriptors if trace.path(uuid) == "telemetry of gpu0/errors"]
    marks = [(packet.timestamp, packet.track_event.type, packet.track_event.name) for packet in trace.events[uuid]]
    assert marks == [(i * 100 * MS, INSTANT, "XID 31") for i in range(3)]


def test_requests_without_an_answer_and_indices_below_zero_are_drawn() -> None:
    outcome = simulate(Simulated(requests=2))
    failed = replace(outcome.requests[0], chunk_ns=[], chunk_tokens=[], answer_id=None, sent_ns=None)
    ramp = replace(outcome.requests[1], index=-40, phase=Phase.RAMP)
    trace = Parsed(trial_trace(outcome.attribution(), [failed, ramp], []))
    assert [name for _, name, _, _ in trace.slices("client/request 0")] == ["wait in client", "request"]
    assert trace.slices("client/ramp request 40")


def test_slices_that_meet_end_before_the_next_begins() -> None:
    trace = Trace()
    track = trace.track("t", trace.process("p"))
    trace.slice(track, "outer", 10, 30)
    trace.slice(track, "inner", 20, 30, {"bytes": -5, "text": "ü"})
    trace.slice(track, "next", 30, 40)
    trace.slice(track, "empty", 40, 40)
    read_back = Parsed(trace.encoded())
    assert read_back.slices("p/t") == [(1, "inner", 20, 30), (0, "outer", 10, 30), (0, "next", 30, 40)]
    (uuid,) = read_back.events
    (inner,) = [packet.track_event for packet in read_back.events[uuid] if packet.track_event.name == "inner"]
    assert [(note.name, note.int_value, note.string_value) for note in inner.debug_annotations] == [
        ("bytes", -5, ""),
        ("text", 0, "ü"),
    ]
