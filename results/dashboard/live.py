"""What a run that goes on looks like now: read from its folder, as everything else is.

Answers are decoded when a trial has ended; until then the raw log says how many exchanges have ended, how, and when
the first bytes came. That is what is shown of the trial under way, under those names.
"""

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from results.jsonl import read_log
from results.records import Manifest, RunStatus, StreamRecord, TelemetryRecord, TrialPlan
from results.store import RunFolder, TrialFolder

_RECENT = 200
_SECONDS = 60


class Step(msgspec.Struct, frozen=True):
    """One trial of the plan.

    Attributes:
        id: as in the manifest.
        engine: label.
        load: label.
        repeat: counted from 1.
        state: ``planned``, ``running``, or the verdict.
        why: of an INVALID one, the first reason.
    """

    id: str
    engine: str
    load: str
    repeat: int
    state: str
    why: str = ""


class Current(msgspec.Struct, frozen=True):
    """The trial under way.

    Attributes:
        id: as in the manifest.
        ends: how many exchanges ended in which way, warm-up included.
        per_second: exchanges that ended in each of the last seconds, oldest first.
        first_byte_p50_s: median over the last exchanges, from the planned start; None before the first.
        telemetry: the last sample of each source.
    """

    id: str
    ends: dict[str, int]
    per_second: list[int]
    first_byte_p50_s: float | None
    telemetry: dict[str, dict[str, float | int | str | None]]


class Live(msgspec.Struct, frozen=True):
    """A run now.

    Attributes:
        run: its id.
        name: of the experiment.
        status: how far it got.
        steps: the plan.
        current: None between trials, and where the run does not go on.
        failure: why it failed.
    """

    run: str
    name: str
    status: RunStatus
    steps: list[Step]
    current: Current | None
    failure: str | None = None

    @property
    def done(self) -> int:
        """Trials that ended."""
        return sum(step.state not in {"planned", "running"} for step in self.steps)


def live(folder: RunFolder) -> Live:
    """Look at a run.

    Raises:
        RunUnreadable: its manifest is damaged.
    """
    manifest = folder.read_manifest()
    status = folder.status()
    goes_on = status is RunStatus.RUNNING
    steps = [_step(folder.trial(plan.id), plan, goes_on=goes_on) for plan in manifest.trials]
    under_way = next((step.id for step in reversed(steps) if step.state == "running"), None)
    current = _current(folder.trial(under_way), under_way) if under_way else None
    return _live(manifest, folder, status, steps, current)


def _live(manifest: Manifest, folder: RunFolder, status: RunStatus, steps: list[Step], current: Current | None) -> Live:
    return Live(folder.path.name, manifest.name, status, steps, current, manifest.failure)


def _step(folder: TrialFolder, plan: TrialPlan, *, goes_on: bool) -> Step:
    record = folder.read_record()
    if record is not None:
        state, why = record.verdict.value, (record.reasons[0] if record.reasons else "")
    else:
        state, why = ("running" if goes_on and folder.path.is_dir() else "planned"), ""
    return Step(plan.id, plan.engine, plan.load.label, plan.repeat, state, why)


def _current(folder: TrialFolder, trial: str) -> Current:
    streams = sorted(folder.read_streams(), key=_ended)
    first_bytes = [(stream.read_ns[0] - stream.planned_ns) / 1e9 for stream in streams[-_RECENT:] if stream.read_ns]
    return Current(
        trial,
        ends=dict(Counter(stream.end for stream in streams)),
        per_second=_per_second(streams),
        first_byte_p50_s=statistics.median(first_bytes) if first_bytes else None,
        telemetry={sample.source: sample.values for sample in read_log(folder.telemetry_log, TelemetryRecord).records},
    )


def _ended(stream: StreamRecord) -> int:
    return stream.ended_ns


def _per_second(streams: Sequence[StreamRecord]) -> list[int]:
    """Exchanges by the second in which they ended; the last bin ends with the last of them."""
    if not streams:
        return []
    last = streams[-1].ended_ns
    first = max(streams[0].ended_ns, last - (_SECONDS - 1) * 1_000_000_000)
    counts = Counter((last - stream.ended_ns) // 1_000_000_000 for stream in streams if stream.ended_ns >= first)
    return [counts[ago] for ago in range((last - first) // 1_000_000_000, -1, -1)]
