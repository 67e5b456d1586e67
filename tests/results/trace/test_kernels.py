"""Kernels from torch's profiler, converted to the clock of the engine's steps."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.results.errors import RunUnreadable
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.step_log import ChunkRecord, RequestQueued, StepRecord
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.text.attribution import kernel_line
from bakeoff.results.trace.kernels import read_kernels
from bakeoff.results.trace.trial import trial_trace
from tests.results.step_simulation import MS, Simulated, simulate
from tests.results.trace.test_trace import Parsed

OFFSET_NS = 1_790_000_000_000_000_000
STEP_NS = 10 * MS
BASE_NS = 1_000 * MS


def event(name: str, cat: str, start_ns: int, end_ns: int, **more: Any) -> dict[str, Any]:
    """An event as the profiler writes it: wall-clock microseconds since the base, counted from BASE_NS."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": (BASE_NS + start_ns) / 1e3,
        "dur": (end_ns - start_ns) / 1e3,
        **more,
    }


def recorded(path: Path, events: list[dict[str, Any]]) -> TrialFolder:
    """A profiled trial followed by ten steps of 10 ms and these profiler events."""
    folder = TrialFolder(path)
    inner = folder.kernels
    inner.path.mkdir(parents=True)
    with FrameAppender(inner.path / "steps-0.frames") as log:
        log.append(RequestQueued(0, "a-0", 4, 0, 0))
        for i in range(10):
            chunk = ChunkRecord(0, 4 + i, 1, 0, 1)
            start_ns = BASE_NS + i * STEP_NS
            log.append(StepRecord(i, start_ns, start_ns + MS, start_ns + 9 * MS, [chunk], [], 1, 0, 1))
    inner.clock.write_text(str(OFFSET_NS))
    trace = {"baseTimeNanoseconds": OFFSET_NS, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]}
    (inner.path / "kernels-0.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder


MARKS = [event("engine step", "user_annotation", i * STEP_NS - 20_000, i * STEP_NS + 9 * MS, tid=7) for i in range(10)]
KERNELS = [
    event("gemm", "kernel", i * STEP_NS + 2 * MS, i * STEP_NS + 6 * MS, tid=7, args={"stream": 13}) for i in range(10)
]


def test_kernels_are_put_on_the_monotonic_clock_and_their_residual_is_told(tmp_path: Path) -> None:
    (record,) = read_kernels(recorded(tmp_path, MARKS + KERNELS))
    gemm = next(kernel for kernel in record.kernels if kernel.name == "gemm")
    assert (gemm.lane, gemm.is_gpu) == ("stream 13", True)
    assert gemm.start_ns == pytest.approx(
        BASE_NS + 2 * MS, abs=200
    )  # a double of this size resolves microseconds to 0.1 µs
    assert gemm.end_ns == pytest.approx(BASE_NS + 6 * MS, abs=200)
    assert record.residual_ns == pytest.approx(20_000, abs=200)
    assert record.share_in_steps() == pytest.approx(1.0, abs=1e-3)
    line = kernel_line([record], None)
    assert line.startswith("kernels: 20 operations of the engine behind the trial")
    assert "within 20 µs of the steps; 100.0 % of the GPU's kernel time lies inside steps" in line


def test_kernels_outside_of_steps_show(tmp_path: Path) -> None:
    late = [event("gemm", "kernel", i * STEP_NS + 7 * MS, i * STEP_NS + 10 * MS, args={"stream": 1}) for i in range(9)]
    (record,) = read_kernels(recorded(tmp_path, late))
    assert record.share_in_steps() == pytest.approx(2 / 3, abs=1e-3)
    assert record.residual_ns is None


def test_an_engine_without_steps_has_kernels_all_the_same(tmp_path: Path) -> None:
    copies = [
        event("Memcpy", "gpu_memcpy", i * STEP_NS + 5 * MS, i * STEP_NS + 7 * MS, args={"stream": 14})
        for i in range(10)
    ]
    folder = recorded(tmp_path, KERNELS + copies)
    (folder.kernels.path / "steps-0.frames").unlink()
    (record,) = records = read_kernels(folder)
    assert (record.steps, record.residual_ns, record.share_in_steps()) == (None, None, None)
    assert record.busy_share() == pytest.approx((9 * 5 + 5) / 95, abs=1e-6)  # 2 to 7 ms of every 10
    assert record.shares() == [("gemm", pytest.approx(2 / 3)), ("Memcpy", pytest.approx(1 / 3))]
    assert kernel_line(records, None).endswith("busy 53 % of the time, most of it with gemm 67 %, Memcpy 33 %")
    outcome = simulate(Simulated(requests=2))
    trace = Parsed(trial_trace(outcome.attribution(), outcome.requests, [], records))
    assert len(trace.slices("engine 0 after the trial, with kernels/stream 13")) == 10


def test_operations_of_a_cpu_nest_in_the_trace(tmp_path: Path) -> None:
    linear = event("aten::linear", "cpu_op", MS, 4 * MS, tid=7)
    inner = event("aten::mm", "cpu_op", MS + 500, 4 * MS + 300, tid=7)  # rounding lets it end after its parent
    (record,) = records = read_kernels(recorded(tmp_path, [inner, linear, *MARKS]))
    assert record.share_in_steps() is None
    assert [name for name, _ in record.shares()] == ["outside of torch's operations", "aten::mm", "aten::linear"]
    assert dict(record.shares())["aten::mm"] == pytest.approx(3 / 90.2, rel=0.01)  # of ten marks of 9.02 ms
    assert kernel_line(records, None).endswith(
        "most of the time: outside of torch's operations 97 %, aten::mm 3 %, aten::linear 0 %"
    )
    outcome = simulate(Simulated(requests=2))
    trace = Parsed(trial_trace(outcome.attribution(), outcome.requests, [], records))
    slices = trace.slices("engine 0 after the trial, with kernels/thread 7")
    assert [(depth, name) for depth, name, _, _ in slices][:3] == [
        (2, "aten::mm"),
        (1, "aten::linear"),
        (0, "engine step"),
    ]
    assert len(trace.slices("engine 0 after the trial, with kernels/steps")) == 30  # with planning and collection


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    assert read_kernels(TrialFolder(tmp_path / "none")) == []
    assert kernel_line([], None) == ""
    assert kernel_line([], "HTTP 400") == "kernels: not recorded, because HTTP 400"
    folder = recorded(tmp_path / "damaged", MARKS)
    (folder.kernels.path / "kernels-0.json.gz").write_bytes(b"no gzip")
    with pytest.raises(RunUnreadable, match="is damaged"):
        read_kernels(folder)
    folder.kernels.clock.write_text("noon")
    with pytest.raises(RunUnreadable, match="clock-offset cannot be read"):
        read_kernels(folder)
