"""Findings about the machine: foreign load, throttling and power limits, and which of them invalidate a trial."""

import pytest

from harness.verdict.machine_state import MAX_FOREIGN_SHARE, machine_findings
from results.findings import Cause, FindingCode, Severity
from results.metrics.machine import POWER_CAP
from results.records import TelemetryRecord, Window

S = 1_000_000_000
WINDOW = Window(0, 10 * S)


def load(foreign_share: float, cores: int = 2) -> list[TelemetryRecord]:
    """CPU telemetry in which only foreign processes use the cores, by this share."""
    return [
        TelemetryRecord(t_s * S, "cpu", {"cores": cores, "unused_s": (1 - foreign_share) * cores * t_s, "own_s": 0.0})
        for t_s in (0, 5, 10)
    ]


def gpu(**values: float) -> list[TelemetryRecord]:
    """GPU counters that grow by these values each second."""
    return [
        TelemetryRecord(t * S, "gpu0", {name: v * t if name.endswith("_s") else v for name, v in values.items()})
        for t in range(11)
    ]


@pytest.mark.parametrize(
    ("share", "code", "severity"),
    [
        (0.0, None, None),
        (0.04, None, None),
        (0.06, FindingCode.SOME_FOREIGN_LOAD, Severity.WARNING),
        (0.19, FindingCode.SOME_FOREIGN_LOAD, Severity.WARNING),
        (0.21, FindingCode.FOREIGN_LOAD, Severity.INVALID),
        (1.0, FindingCode.FOREIGN_LOAD, Severity.INVALID),
    ],
)
def test_foreign_load_is_warned_about_and_then_voids(
    share: float, code: FindingCode | None, severity: Severity | None
) -> None:
    findings = machine_findings(load(share), WINDOW)
    assert [(finding.code, finding.severity) for finding in findings] == ([(code, severity)] if code else [])


def test_a_finding_says_how_much_and_how_many_cores() -> None:
    (finding,) = machine_findings(load(0.5), WINDOW)
    assert finding.parameters == pytest.approx(
        {"foreign_share": 0.5, "foreign_cores": 1.0, "max_foreign_share": MAX_FOREIGN_SHARE}
    )
    assert finding.code.cause is Cause.MACHINE


def test_the_limit_comes_from_the_experiment() -> None:
    assert machine_findings(load(0.5), WINDOW, 0.6)[0].severity is Severity.WARNING
    assert machine_findings(load(1.0), WINDOW, 1.0)[0].severity is Severity.WARNING, "1 voids nothing"
    assert machine_findings(load(0.06), WINDOW, 0.0)[0].severity is Severity.INVALID


def test_one_burner_voids_on_four_cores_and_is_seen_on_sixteen() -> None:
    by_cores = {cores: machine_findings(load(1 / cores, cores), WINDOW) for cores in (2, 4, 8, 16, 32)}
    assert [[finding.severity for finding in findings] for findings in by_cores.values()] == [
        [Severity.INVALID], [Severity.INVALID], [Severity.WARNING], [Severity.WARNING], [],
    ]  # fmt: skip


def test_unknown_foreign_load_is_no_finding() -> None:
    hidden = [TelemetryRecord(t * S, "cpu", {"cores": 2, "unused_s": 0.0, "own_s": None}) for t in (0, 10)]
    assert machine_findings(hidden, WINDOW) == []
    assert machine_findings([], WINDOW) == []


def test_heat_between_two_samples_voids() -> None:
    """Reliability test 26: the driver counted 0.01 s per second of throttling, and no sample of the mask saw it."""
    (finding,) = machine_findings(gpu(throttle_reasons=0, heat_driver_s=0.01), WINDOW)
    assert (finding.code, finding.severity) == (FindingCode.THROTTLED, Severity.INVALID)
    assert finding.parameters == pytest.approx({"gpu": "gpu0", "held_s": 0.1})


@pytest.mark.parametrize(("share", "warned"), [(0.5, False), (0.51, True)])
def test_a_gpu_at_its_power_limit_for_most_of_the_window_is_a_warning(share: float, warned: bool) -> None:
    findings = machine_findings(gpu(throttle_reasons=POWER_CAP, power_cap_s=share), WINDOW)
    assert [(finding.code, finding.severity) for finding in findings] == (
        [(FindingCode.POWER_CAPPED, Severity.WARNING)] if warned else []
    )


def test_invalidating_findings_come_first() -> None:
    findings = machine_findings([*load(0.1), *gpu(throttle_reasons=POWER_CAP | 0x40)], WINDOW)
    assert [finding.code for finding in findings] == [
        FindingCode.THROTTLED, FindingCode.SOME_FOREIGN_LOAD, FindingCode.POWER_CAPPED,
    ]  # fmt: skip
