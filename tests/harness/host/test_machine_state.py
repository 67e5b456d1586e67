"""Findings about the machine: foreign load, throttling and power limits, and which of them invalidate a trial."""

import pytest

from bakeoff.harness.host.machine_state import MAX_FOREIGN_SHARE, machine_findings, sampler_lost
from bakeoff.results.finding_codes import Cause, FindingCode
from bakeoff.results.findings import Finding, Severity, invalid, is_against_engine, note, warning
from bakeoff.results.metrics.machine import POWER_CAP, SLOWDOWN, PowerBasis
from bakeoff.results.records import TelemetryRecord, Window

S = 1_000_000_000
WINDOW = Window(0, 10 * S)


def load(foreign_share: float, cores: int = 2) -> list[TelemetryRecord]:
    """CPU telemetry in which only foreign processes use the cores, at this share."""
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


@pytest.mark.parametrize(
    ("sampled", "share"),
    [
        (range(-20, 120), None),
        (range(1, 100), None),  # the grid of ticks does not begin with the window
        (range(91), None),
        (range(80), 0.8),  # killed
        ([*range(30), *range(60, 120)], 0.7),  # stopped for three seconds
        (range(-20, 0), 0.0),
        ([], 0.0),
    ],
)
def test_a_window_without_samples_of_the_host_is_no_evidence(sampled: range, share: float | None) -> None:
    telemetry = [
        TelemetryRecord(tick * S // 10, source, {}) for tick in sampled for source in ("cpu", "host", "engine")
    ]
    expected = [] if share is None else [invalid(FindingCode.SAMPLER_LOST, sampled_share=share)]
    assert list(sampler_lost(telemetry, WINDOW, S // 10)) == expected
    assert not is_against_engine(expected)


def test_a_window_that_is_empty_or_shorter_than_a_tick_needs_no_sample() -> None:
    assert not [*sampler_lost([], Window(5, 5), S // 10), *sampler_lost([], Window(0, S // 10), S // 10)]


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


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.009, None), (0.011, Severity.NOTE), (0.5, Severity.NOTE), (0.51, Severity.WARNING)],
)
def test_a_gpu_at_its_power_limit_is_noted_and_for_most_of_the_window_warned_about(
    share: float, severity: Severity | None
) -> None:
    findings = machine_findings(gpu(throttle_reasons=POWER_CAP, power_cap_s=share), WINDOW)
    assert [(finding.code, finding.severity) for finding in findings] == (
        [(FindingCode.POWER_CAPPED, severity)] if severity else []
    )
    assert {finding.parameters["power_basis"] for finding in findings} <= {PowerBasis.COUNTED.value}


def test_a_slowdown_by_hardware_is_no_time_at_the_power_limit() -> None:
    """The driver counts time at the power limit, and counted none."""
    samples = gpu(throttle_reasons=SLOWDOWN, power_cap_s=0.0)
    assert machine_findings(samples, WINDOW) == [warning(FindingCode.HARDWARE_SLOWDOWN, gpu="gpu0", slowed_share=1.0)]
    samples[:6] = [TelemetryRecord(record.t_ns, "gpu0", {"throttle_reasons": 0}) for record in samples[:6]]
    (finding,) = machine_findings(samples, WINDOW)
    assert finding == note(FindingCode.HARDWARE_SLOWDOWN, gpu="gpu0", slowed_share=0.4)


def test_errors_of_a_gpu_void_the_trial_unless_they_were_corrected() -> None:
    """An error before the window counts too; what was corrected, or is repaired at the next reset, is a note."""
    records = [
        TelemetryRecord(-S, "gpu0", {"ecc_corrected_errors": 1, "ecc_uncorrected_errors": 0}),
        TelemetryRecord(-S, "gpu0", {"xid": 79}),
        TelemetryRecord(
            11 * S, "gpu0", {"ecc_corrected_errors": 4, "ecc_uncorrected_errors": 2, "memory_repair_pending": 1}
        ),
    ]
    assert machine_findings(records, WINDOW) == [
        invalid(FindingCode.XID, gpu="gpu0", xid=79),
        invalid(FindingCode.ECC_UNCORRECTED, gpu="gpu0", errors=2),
        note(FindingCode.ECC_CORRECTED, gpu="gpu0", errors=3),
        note(FindingCode.MEMORY_REPAIR_PENDING, gpu="gpu0"),
    ]


@pytest.mark.parametrize(
    ("xids", "findings"),
    [
        ([13, 31, 43], [invalid(FindingCode.PROGRAM_XID, gpu="gpu0", xid=xid) for xid in (13, 31, 43)]),
        ([31, 79], [invalid(FindingCode.XID, gpu="gpu0", xid=xid) for xid in (79, 31)]),  # the GPU's own fault
        ([45], [warning(FindingCode.XID, gpu="gpu0", xid=45)]),
        ([45, 79], [invalid(FindingCode.XID, gpu="gpu0", xid=79), warning(FindingCode.XID, gpu="gpu0", xid=45)]),
        ([63], [note(FindingCode.MEMORY_REPAIR_PENDING, gpu="gpu0")]),
        ([64], [invalid(FindingCode.XID, gpu="gpu0", xid=64)]),
    ],
)
def test_an_xid_says_who_failed(xids: list[int], findings: list[Finding]) -> None:
    judged = machine_findings([TelemetryRecord(S, "gpu0", {"xid": xid}) for xid in xids], WINDOW)
    assert judged == findings
    assert is_against_engine(judged) is any(finding.code is FindingCode.PROGRAM_XID for finding in findings)


def test_a_program_that_fails_after_a_memory_error_is_not_to_blame() -> None:
    records = [
        TelemetryRecord(t * S, "gpu0", {"ecc_uncorrected_errors": t, **({"xid": 31} if t else {})}) for t in range(2)
    ]
    assert not is_against_engine(machine_findings(records, WINDOW))


def test_invalidating_findings_come_first() -> None:
    findings = machine_findings([*load(0.1), *gpu(throttle_reasons=POWER_CAP | 0x40)], WINDOW)
    assert [finding.code for finding in findings] == [
        FindingCode.THROTTLED, FindingCode.SOME_FOREIGN_LOAD, FindingCode.POWER_CAPPED,
    ]  # fmt: skip
