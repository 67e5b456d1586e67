"""An engine that was stopped for a while is told by the state of its processes."""

from collections.abc import Sequence

from harness.stopped import stopped
from harness.verdict import Evidence, judge
from results.metrics.window import Window
from results.records import Load, TelemetryRecord, Verdict
from tests.harness.samples import request

S = 1_000_000_000
MEASURED = [request(i) for i in range(10)]


def readings(
    stops: Sequence[int | None], processes: int = 1, source: str = "engine", start_s: float = 1.0
) -> list[TelemetryRecord]:
    """One each tenth of a second."""
    times = [round((start_s + 0.1 * i) * S) for i in range(len(stops))]
    return [
        TelemetryRecord(t_ns, source, {"processes": processes, "stopped": count})
        for t_ns, count in zip(times, stops, strict=True)
    ]


def test_an_engine_that_always_ran_was_not_stopped() -> None:
    assert stopped([], MEASURED) is None
    assert stopped(readings([0] * 50), MEASURED) is None
    assert stopped(readings([None] * 50), MEASURED) is None, "a log of an earlier version"


def test_the_time_without_a_running_process_is_told() -> None:
    told = stopped(readings([0, *[1] * 30, 0, 0, *[1] * 10, 0]), MEASURED)
    assert told == (
        "engine was stopped: none of its processes ran for 4.0 s of the trial; let nothing stop it, and repeat"
    )


def test_so_is_one_process_of_several() -> None:
    told = stopped(readings([0, *[1] * 30, 0], processes=3), MEASURED)
    assert told is not None
    assert told.startswith("engine was stopped: 1 of its 3 processes did not run for 3.0 s of the trial")


def test_a_moment_is_not_told_from_the_sampling() -> None:
    assert stopped(readings([0, 1, 1, 0]), MEASURED) is None


def test_neither_the_client_nor_the_time_outside_the_load_counts() -> None:
    assert stopped(readings([1] * 30, source="client"), MEASURED) is None
    assert stopped(readings([1] * 30, start_s=500), MEASURED) is None
    assert stopped(readings([1] * 30), []) is None


def test_such_a_trial_is_no_evidence() -> None:
    evidence = Evidence(MEASURED, readings([1] * 30), Load(concurrency=1), Window(0, 10 * S), 0.01)
    verdict, reasons = judge(evidence)
    assert verdict is Verdict.INVALID
    assert reasons[0].startswith("engine was stopped")
