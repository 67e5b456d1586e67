"""Spans that an engine exports during a profiled trial: received, stored, and asked for by a header."""

import asyncio
import contextlib
import errno
import gzip
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from bakeoff.engines import Engine, Launch, Model
from bakeoff.harness.client import Fleet
from bakeoff.harness.conduct import engine_start, recording, spans
from bakeoff.harness.conduct.engine_start import EngineUnderTest
from bakeoff.harness.conduct.replicas import ONE, Replicas
from bakeoff.harness.conduct.spans import TYPE, SpanReceiver, read_clocks, receiving
from bakeoff.harness.experiment.reading import profiling
from bakeoff.harness.host.clock import LoopClock, run_virtual
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.results import Run
from bakeoff.results.errors import NotWritable
from bakeoff.results.files.frames import FrameAppender, FrameLog
from bakeoff.results.log.spans import ClockReading, SpanBatch, SpanFrame

TRIAL: dict[str, Any] = {"warm_up_s": 0.0, "duration_s": 0.5, "ramp_s": 0.1, "min_requests": 2}


def frames(path: Path) -> list[SpanFrame]:
    return list(FrameLog(path, SpanFrame))


def test_bodies_are_stored_as_they_arrive_and_only_while_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spans, "_MAX_BODY_BYTES", 1000)
    path = tmp_path / "spans.frames"

    async def send(session: aiohttp.ClientSession, url: str, data: bytes, **headers: str) -> int:
        named = {"content-type": TYPE, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with session.post(url, data=data, headers=named) as answer:
            return answer.status

    async def scene() -> None:
        async with receiving() as receiver, aiohttp.ClientSession() as session:
            url = receiver.endpoint
            assert url.startswith("http://127.0.0.1:")
            with pytest.raises(OSError, match="address already in use"):
                await receiving(int(url.split(":")[2].partition("/")[0])).__aenter__()
            assert await send(session, url, b"before") == 200
            receiver.start(path)
            assert await send(session, url, b"plain") == 200
            assert await send(session, url, gzip.compress(b"packed"), content_encoding="gzip") == 200
            assert await send(session, url, b"{}", content_type="application/json") == 415
            assert await send(session, url, gzip.compress(bytes(2000)), content_encoding="gzip") == 413
            assert receiver.batches == 2
            await receiver.stop()
            assert await send(session, url, b"after") == 200

    asyncio.run(scene())
    batches = [frame for frame in frames(path) if isinstance(frame, SpanBatch)]
    assert [frame.body for frame in batches] == [b"plain", b"packed"]
    first, *_, last = frames(path)
    assert isinstance(first, ClockReading)
    assert isinstance(last, ClockReading)
    assert first.t_ns <= batches[0].received_ns <= batches[1].received_ns <= last.t_ns


def test_clocks_are_read_every_second_and_where_nothing_came_between(tmp_path: Path):
    monotonic, wall = iter([0, 90, 100, 104, 200, 290, 300, 390, 400, 490]), iter([50, 1102, 240, 340, 440])
    assert read_clocks(lambda: next(monotonic), lambda: next(wall)) == ClockReading(102, 1000)

    async def scene() -> None:
        receiver = SpanReceiver(lambda: ClockReading(LoopClock().now_ns(), 5))
        receiver.start(tmp_path / "spans.frames")
        await asyncio.sleep(2.5)
        await receiver.stop()
        await receiver.stop()

    run_virtual(scene())
    assert [frame.t_ns for frame in frames(tmp_path / "spans.frames")] == [0, 10**9, 2 * 10**9, 2_500_000_000]


def test_a_full_disk_ends_the_record_and_not_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(self: FrameAppender) -> None:
        raise NotWritable("cannot write spans.frames: no space left")

    async def scene() -> str | None:
        receiver = SpanReceiver(lambda: ClockReading(0, 0))
        receiver.start(tmp_path / "spans.frames")
        monkeypatch.setattr(FrameAppender, "flush", fail)
        await receiver.stop()
        return receiver.failure

    assert run_virtual(scene()) == "cannot write spans.frames: no space left"


def test_a_launch_that_exports_spans_gets_the_address_of_a_receiver():
    async def received(*launches: Launch) -> tuple[list[Launch], SpanReceiver | None]:
        async with engine_start._receiver(list(launches)) as found:
            return found

    exporting, plain = Launch(("vllm", "--otlp-traces-endpoint", "{spans}"), 1), Launch(("vllm",), 1)
    (launch,), receiver = asyncio.run(received(exporting))
    assert receiver is not None
    assert launch.argv == ("vllm", "--otlp-traces-endpoint", receiver.endpoint)
    assert asyncio.run(received(plain)) == ([plain], None)


class Exported(SpanReceiver):
    """A receiver that gets these bodies before it is stopped."""

    def __init__(self, *bodies: bytes) -> None:
        super().__init__(lambda: ClockReading(LoopClock().now_ns(), 0))
        self.bodies = bodies
        self.endpoint = "http://127.0.0.1:1/v1/traces"

    async def stop(self) -> None:
        if self._log:
            for body in self.bodies:
                self.batches += 1
                self._write(SpanBatch(LoopClock().now_ns(), body))
        await super().stop()


class ExportingWorld(VirtualWorld):
    """Its engines were launched with this receiver."""

    receiver: SpanReceiver | None = None

    @contextlib.asynccontextmanager
    async def started(
        self, engine: Engine, label: str, model: Model, port: int | None, log: Path, *, replicas: Replicas = ONE
    ) -> AsyncGenerator[EngineUnderTest]:
        async with super().started(engine, label, model, port, log, replicas=replicas) as under_test:
            yield msgspec.structs.replace(under_test, spans=self.receiver)


def measured(root: Path, receiver: SpanReceiver | None, levels: int = 1, **engine: Any) -> Run:
    world = ExportingWorld({"vllm": VirtualEngine()})
    world.receiver = receiver
    loads = [{"concurrency": level + 1} for level in range(levels)]
    chosen = virtual_experiment([], loads, engines=[{"adapter": "vllm", **engine}], trial=TRIAL, repeats=1)
    return run_in(world, profiling(chosen), root)


def test_requests_of_the_profiled_trial_ask_for_their_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parents: list[str | None] = []
    steady = Fleet.steady

    async def spy(self: Fleet, order: Any, *rest: Any) -> Any:
        parents.append(order.access.headers.get("traceparent"))
        return await steady(self, order, *rest)

    monkeypatch.setattr(Fleet, "steady", spy)
    run = measured(tmp_path, Exported(b""), levels=2)
    assert [parent is None for parent in parents] == [True, False, True, False]
    version, trace, parent, flags = (parents[1] or "").split("-")
    assert (version, len(trace), len(parent), flags) == ("00", 32, 16, "01")
    for trial in run.profiled:
        assert trial.record.step_log_missing is None
        stored = frames(run.folder.trial(trial.record.id).span_log)
        assert [frame.body for frame in stored if isinstance(frame, SpanBatch)] == [b""]
    assert not run.folder.trial(run.finished[0].record.id).span_log.exists()
    assert run.attributions[0].missing == "no span of the engine belongs to a request of the window"


def test_the_reason_for_missing_spans_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(receiver: SpanReceiver | None, name: str, **engine: Any) -> str:
        (trial,) = measured(tmp_path / name, receiver, **engine).profiled
        return trial.record.step_log_missing or ""

    silent = missing(Exported(), "silent")
    assert silent == "vllm sent no spans to http://127.0.0.1:1/v1/traces; see the engine's log"
    assert "cannot reach the receiver of spans" in missing(None, "unreachable")

    @contextlib.asynccontextmanager
    async def taken(port: int) -> AsyncGenerator[SpanReceiver]:
        raise OSError(errno.EADDRINUSE, "address already in use")
        yield SpanReceiver()

    monkeypatch.setattr(recording, "receiving", taken)
    url = "http://virtual:1"
    assert missing(None, "taken", url=url).startswith("port 4318 cannot be used (address already in use); stop")

    @contextlib.asynccontextmanager
    async def free(port: int) -> AsyncGenerator[SpanReceiver]:
        yield Exported()

    monkeypatch.setattr(recording, "receiving", free)
    how = missing(None, "running", url=url)
    assert how.startswith(
        "vllm sent no spans to http://127.0.0.1:1/v1/traces; start it with OTEL_EXPORTER_OTLP_TRACES_"
    )
    assert how.endswith("vllm serve … --otlp-traces-endpoint http://127.0.0.1:1/v1/traces")
