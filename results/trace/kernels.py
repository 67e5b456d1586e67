"""Kernels that torch's profiler recorded, on the monotonic clock.

The profiler writes Chrome's trace format with times of the wall clock; the difference to the monotonic clock was
stamped when it ended. The mark ``engine step`` around every step shows how well the two agree: the engine plans right
after the mark begins, and both clocks tell when that was.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from bakeoff.results.attribution.steps import Steps, steps_of
from bakeoff.results.errors import UNDECODABLE, RunUnreadable
from bakeoff.results.log.store import TrialFolder

_MARK = "engine step"
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_MARKS = "user_annotation"
_CPU = frozenset({"cpu_op", _MARKS})
_MAX_BYTES = 1 << 30
"""Bound on the unpacked size of a profile: a second of a large model on a GPU is about a tenth of this."""
_NAME_CHARS = 48
"""Of a kernel's name, which can have thousands."""


class Kernel(msgspec.Struct, frozen=True):
    """One event of the profiler.

    Attributes:
        name: of the kernel or operation.
        lane: ``stream 7`` of a GPU, or ``thread 1234`` of a CPU.
        start_ns: on the monotonic clock.
        end_ns: on the monotonic clock.
        is_gpu: whether it ran on a GPU.
        is_mark: whether it only marks what the engine does meanwhile, such as a step.
    """

    name: str
    lane: str
    start_ns: int
    end_ns: int
    is_gpu: bool
    is_mark: bool = False


class KernelRecord(msgspec.Struct, frozen=True):
    """The kernels of one engine process, and its steps meanwhile.

    Attributes:
        kernels: in order of their starts.
        steps: of the engine; None if it does not record them.
        residual_ns: largest difference between a step's mark and its planning; None without a mark.
    """

    kernels: list[Kernel]
    steps: Steps | None
    residual_ns: int | None

    def _gpu_ns(self) -> np.ndarray:
        """Start and end of the GPU's kernels, (kernels, 2)."""
        return np.array([(k.start_ns, k.end_ns) for k in self.kernels if k.is_gpu], dtype=np.int64).reshape(-1, 2)

    def busy_share(self) -> float | None:
        """Share of the time from the first to the last kernel in which the GPU ran any; None without a GPU."""
        kernels = self._gpu_ns()
        if not len(kernels):
            return None
        ended_ns = np.maximum.accumulate(kernels[:, 1])
        idle_ns = np.maximum(0, kernels[1:, 0] - ended_ns[:-1]).sum()
        return float(1 - idle_ns / max(1, ended_ns[-1] - kernels[0, 0]))

    def nested(self) -> Iterator[tuple[Kernel, int, Kernel | None]]:
        """Each kernel with its end, no later than that of the kernel around it in its lane, and with that kernel."""
        lanes: dict[str, list[tuple[Kernel, int]]] = {}
        for kernel in self.kernels:
            outer = lanes.setdefault(kernel.lane, [])
            while outer and outer[-1][1] <= kernel.start_ns:
                outer.pop()
            around, outer_end_ns = outer[-1] if outer else (None, kernel.end_ns)
            end_ns = min(kernel.end_ns, outer_end_ns)  # the profiler's times are rounded
            outer.append((kernel, end_ns))
            yield kernel, end_ns, around

    def shares(self) -> list[tuple[str, float]]:
        """The GPU's kernels, or without a GPU the operations, with their shares of the time, the largest first.

        Time of an operation inside another one counts for the inner one; names are cut.
        """
        on_gpu = any(kernel.is_gpu for kernel in self.kernels)
        times_ns: Counter[str] = Counter()
        for kernel, end_ns, around in self.nested():
            if kernel.is_gpu == on_gpu:
                times_ns[_short(kernel)] += end_ns - kernel.start_ns
                if around is not None:
                    times_ns[_short(around)] -= end_ns - kernel.start_ns
        total_ns = max(1, times_ns.total())
        return [(name, time_ns / total_ns) for name, time_ns in times_ns.most_common()]

    def share_in_steps(self) -> float | None:
        """Share of the GPU's kernel time that lies inside the recorded steps; None without a GPU or steps."""
        kernels = self._gpu_ns()
        total_ns = int((kernels[:, 1] - kernels[:, 0]).sum())
        if not total_ns or self.steps is None:
            return None
        planned_ns = np.array([record.planned_ns for record in self.steps.records], dtype=np.int64)
        edges_ns = np.stack([np.maximum(planned_ns, np.roll(self.steps.end_ns, 1)), self.steps.end_ns], axis=1)
        edges_ns[0, 0] = planned_ns[0]  # step i begins when it is planned, or when the step before has ended
        inside_ns = np.concatenate([[0], np.cumsum(edges_ns[:, 1] - edges_ns[:, 0])])
        points = np.stack([inside_ns[:-1], inside_ns[1:]], axis=1).ravel()
        at = np.interp(kernels.ravel(), edges_ns.ravel(), points).reshape(-1, 2)
        return float((at[:, 1] - at[:, 0]).sum() / total_ns)


def _short(kernel: Kernel) -> str:
    return "outside of torch's operations" if kernel.is_mark else kernel.name.removeprefix("void ")[:_NAME_CHARS]


class _Arguments(msgspec.Struct, frozen=True):
    stream: int | None = None


class _Event(msgspec.Struct):
    name: str = ""
    cat: str | None = None
    ph: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: _Arguments = _Arguments()


class _ChromeTrace(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815  (the format's name)
    baseTimeNanoseconds: int = 0  # noqa: N815


def read_kernels(folder: TrialFolder) -> list[KernelRecord]:
    """The kernels recorded after a profiled trial, by engine process; empty if there are none.

    Raises:
        RunUnreadable: a file is damaged.
    """
    inner = folder.kernels
    logs = inner.kernel_logs()
    if not logs:
        return []
    inner.verify()
    try:
        offset_ns = int(inner.clock.read_text())
    except (OSError, ValueError) as error:
        raise RunUnreadable(f"{inner.clock} cannot be read ({error}); restore it from a copy") from error
    steps = [recorded for events in inner.read_steps() if (recorded := steps_of(events)).records]
    return [_record(path, offset_ns, steps) for path in logs]


def _record(path: Path, offset_ns: int, every: Sequence[Steps]) -> KernelRecord:
    kernels = _kernels(path, offset_ns)
    if not every:
        return KernelRecord(kernels, None, None)
    marks = np.array([kernel.start_ns for kernel in kernels if kernel.name == _MARK], dtype=np.int64)
    fits = [(_residual_ns(marks, steps), steps) for steps in every]
    residual_ns, steps = min(fits, key=lambda fit: fit[0] if fit[0] is not None else 1 << 62)
    return KernelRecord(kernels, steps, residual_ns)


def _residual_ns(marks_ns: np.ndarray, steps: Steps) -> int | None:
    """Largest distance from a mark to the next planning; the first and the last mark may be cut off."""
    planned_ns = np.array([record.planned_ns for record in steps.records], dtype=np.int64)
    inner = marks_ns[1:-1]
    if not len(inner):
        return None
    return int(np.abs(planned_ns[np.abs(planned_ns[None, :] - inner[:, None]).argmin(axis=1)] - inner).max())


def _kernels(path: Path, offset_ns: int) -> list[Kernel]:
    try:
        with gzip.open(path) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise RunUnreadable(
                f"{path} unpacks to more than {_MAX_BYTES >> 30} GiB; this is not a profile of one second"
            )
        trace = msgspec.json.decode(data, type=_ChromeTrace)
    except (OSError, EOFError, zlib.error, *UNDECODABLE) as error:
        raise RunUnreadable(f"{path} is damaged ({error}); restore it from a copy") from error
    base_ns = trace.baseTimeNanoseconds - offset_ns
    kernels = [
        Kernel(
            event.name,
            f"stream {event.args.stream}" if event.cat in _GPU else f"thread {event.tid}",
            base_ns + round(event.ts * 1e3),
            base_ns + round((event.ts + event.dur) * 1e3),
            event.cat in _GPU,
            event.cat == _MARKS,
        )
        for event in trace.traceEvents
        if event.ph == "X" and event.cat in _GPU | _CPU
    ]
    return sorted(kernels, key=lambda kernel: (kernel.start_ns, -kernel.end_ns))
