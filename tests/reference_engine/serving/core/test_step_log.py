"""The engine's record of steps and requests, read as the harness reads it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from bakeoff.reference_engine.core.outputs import StepTimes
from bakeoff.reference_engine.errors import UserMistakeError
from bakeoff.reference_engine.scheduling.step import Step
from bakeoff.reference_engine.serving import event_log
from bakeoff.reference_engine.serving.core.step_log import StepLog
from bakeoff.results.attribution import Part
from bakeoff.results.attribution.steps import is_decode, steps_of
from bakeoff.results.files.frames import FrameLog
from bakeoff.results.log import step_log
from bakeoff.results.log.step_log import EngineEvent, HttpRecord, StepRecord
from tests.reference_engine.server_calls import LONG, TEXT, with_server

PROMPT = {"prompt": list(range(5, 25)), "max_tokens": 6, "ignore_eos": True, "temperature": 0}


def test_engine_and_reader_have_the_same_schema():
    for name in ("RequestQueued", "StepRecord", "HttpRecord"):
        engine_type, reader_type = getattr(event_log, name), getattr(step_log, name)
        assert msgspec.inspect.type_info(engine_type).tag == msgspec.inspect.type_info(reader_type).tag
        assert engine_type.__struct_fields__ == reader_type.__struct_fields__
    chunk, write = (7, 20, 1, 0, 1), (1, 30, 40)
    step = event_log.StepRecord(0, 1, 2, 3, [chunk], [8], 1, 0, 4)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=EngineEvent)
    assert read.chunks[0]._asdict() == {
        "request": 7, "past_tokens": 20, "new_tokens": 1, "draft_tokens": 0, "output_tokens": 1
    }  # fmt: skip
    http = event_log.HttpRecord(["a-0"], 1, 2, [write], 3)
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(http), type=HttpRecord).writes[0]
    assert written._asdict() == {"tokens": 1, "reported_ns": 30, "written_ns": 40}


def test_every_token_of_a_streamed_request_has_its_step_and_its_write(serve, tmp_path):
    async def test(s):
        await s.post("/start_step_log", {})
        answers = await asyncio.gather(*(s.stream(TEXT, PROMPT) for _ in range(3)))
        files = (await s.post("/stop_step_log", {}))["files"]
        https, events = list(FrameLog(Path(files[0]), HttpRecord)), list(FrameLog(Path(files[1]), EngineEvent))
        steps = steps_of(events)
        assert {http.request_ids[0].rpartition("-")[0] for http in https} == {answer[0]["id"] for answer in answers}
        for http in https:
            own = steps.requests[http.request_ids[0]]
            assert own.queued.prompt_tokens == 20
            assert len(own.output_steps) == 6
            computed = [chunk.new_tokens for chunk in own.chunks.values() if not is_decode(chunk, own.queued)]
            assert sum(computed) + min(chunk.past_tokens for chunk in own.chunks.values()) == 20
            assert [chunk.output_tokens for chunk in own.chunks.values() if is_decode(chunk, own.queued)] == [1] * 5
            times = [http.received_ns, http.parsed_ns, own.queued.submitted_ns, own.queued.added_ns,
                     steps.records[own.first_step].planned_ns, int(steps.end_ns[own.output_steps[0]]),
                     http.writes[0].reported_ns, http.writes[0].written_ns, http.ended_ns]  # fmt: skip
            assert times == sorted(times)
            assert sum(write.tokens for write in http.writes) == 6
        records = [event for event in events if isinstance(event, StepRecord)]
        assert [record.number for record in records] == list(range(len(records)))
        assert all(r.planned_ns <= r.launched_ns <= r.collected_ns for r in records)

    with_server(serve, test, step_log_dir=str(tmp_path / "log"))


def test_a_step_ends_when_the_device_had_its_tokens(tmp_path):
    engine = SimpleNamespace(on_step=None)
    log = StepLog(str(tmp_path), engine)
    file = log.start()
    for times in (StepTimes(1.0, 1.1, 1.2), StepTimes(1.1, 1.6, 1.6, 1.3), StepTimes(1.6, 1.7, 1.8)):
        engine.on_step(Step(), SimpleNamespace(outputs=[], times=times, running=0, waiting=0, used_blocks=0))
    log.stop()
    steps = steps_of(list(FrameLog(Path(file), EngineEvent)))
    assert steps.end_ns.tolist() == [1_200_000_000, 1_300_000_000, 1_800_000_000]
    assert steps.start_ns.tolist() == [1_000_000_000, 1_200_000_000, 1_600_000_000]


def test_nothing_is_recorded_before_the_start_and_a_request_that_ran_already_is_named_late(serve, tmp_path):
    async def test(s):
        before = asyncio.ensure_future(s.stream(TEXT, LONG))
        await s.until(lambda: _is_running(s))
        first = (await s.post("/start_step_log", {}))["files"]
        await before
        assert (await s.post("/stop_step_log", {}))["files"] == first
        assert list(FrameLog(Path(first[0]), HttpRecord)) == []
        queued = [event for event in FrameLog(Path(first[1]), EngineEvent) if not isinstance(event, StepRecord)]
        assert [event.added_ns for event in queued] == [None]
        again = (await s.post("/start_step_log", {}))["files"]
        await s.post("/stop_step_log", {})
        assert not set(again) & set(first)

    with_server(serve, test, step_log_dir=str(tmp_path))


async def _is_running(s):
    return await s.metric("num_requests_running") == 1


def test_mistakes_are_told_in_one_line(serve, tmp_path):
    async def without_a_place(s):
        assert "--step-log-dir" in (await s.post("/start_step_log", {}, status=400))["error"]["message"]
        assert "no step log" in (await s.post("/stop_step_log", {}, status=400))["error"]["message"]

    async def twice(s):
        await s.post("/start_step_log", {})
        assert "already" in (await s.post("/start_step_log", {}, status=400))["error"]["message"]

    with_server(serve, without_a_place)
    with_server(serve, twice, step_log_dir=str(tmp_path))


def test_a_disk_that_takes_no_more_is_told_at_the_end(tmp_path, monkeypatch):
    file = event_log.EventFile(str(tmp_path), "steps")

    def refuse(data):
        raise OSError(28, "No space left on device")

    file._file.close()
    monkeypatch.setattr(file, "_file", type("Full", (), {"write": staticmethod(refuse), "close": lambda self: None})())
    file.append(event_log.RequestQueued(0, "a-0", 1, None, None))
    with pytest.raises(UserMistakeError, match="No space left"):
        file.close()


def test_two_clocks_are_refused(monkeypatch):
    clocks = {"perf_counter": "QueryPerformanceCounter()", "monotonic": "GetTickCount64()"}
    monkeypatch.setattr(
        event_log.time, "get_clock_info", lambda name: type("Info", (), {"implementation": clocks[name]})
    )
    with pytest.raises(UserMistakeError, match="one monotonic clock"):
        event_log.check_clock()


@pytest.mark.parametrize(
    "settings",
    [
        {"speculation": "ngram:3"},
        {"num_blocks": 16, "block_size": 4, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
    ],
    ids=["drafts", "preemptions", "chunks"],
)
def test_the_time_of_every_request_is_divided_without_remainder(serve, tmp_path, settings):
    async def test(s):
        await s.post("/start_step_log", {})
        # One body, so that the four requests are in flight at once; the bias repeats a token, so that drafts are found.
        prompts = [[9 + i, *[5, 6, 7, 8] * 5] for i in range(4)]
        body = {"prompt": prompts, "max_tokens": 16, "ignore_eos": True, "temperature": 0, "logit_bias": {"5": 100}}
        await s.stream(TEXT, body)
        files = (await s.post("/stop_step_log", {}))["files"]
        steps = steps_of(list(FrameLog(Path(files[1]), EngineEvent)))
        for own in steps.requests.values():
            assert len(own.output_steps) == 16
            final = own.output_steps[-1]
            parts = steps.computing(own, final)
            assert min(parts.values()) >= 0
            assert sum(parts.values()) == pytest.approx(steps.end_ns[final] - steps.start_ns[own.first_step])
        chunks = [chunk for record in steps.records for chunk in record.chunks]
        assert any(chunk.draft_tokens for chunk in chunks) == ("speculation" in settings)
        assert any(record.preempted for record in steps.records) == ("num_blocks" in settings)
        stalled = [steps.computing(own, own.output_steps[-1])[Part.STALL] for own in steps.requests.values()]
        assert any(stalled) == ("num_blocks" in settings)

    with_server(serve, test, step_log_dir=str(tmp_path), **settings)
