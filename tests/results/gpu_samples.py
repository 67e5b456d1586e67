"""Samples of GPUs under the harness's names: they draw more power and heat up while requests are in flight."""

from collections.abc import Iterator, Sequence

from bakeoff.results.records import RequestRecord, TelemetryRecord

S = 1_000_000_000
CAP, HEAT, IDLE = 0x4, 0x20, 0x1


def gpu_samples(
    gpus: int, requests: Sequence[RequestRecord], start_ns: int, end_ns: int, every_ns: int
) -> Iterator[TelemetryRecord]:
    """All GPUs at each tick; under full load the first is limited by its power cap, and once by heat."""
    energy_j = [1_000.0] * gpus
    for tick, t_ns in enumerate(range(start_ns, end_ns + every_ns, every_ns)):
        busy = sum(request.planned_ns <= t_ns < request.ended_ns for request in requests)
        for i in range(gpus):
            power_w = 95.0 + 55.0 * busy + 5 * (tick % 3)
            energy_j[i] += power_w * every_ns / S
            mask = IDLE if not busy else (CAP if busy >= 4 and not i else 0) | (HEAT if tick == 9 and not i else 0)
            yield TelemetryRecord(
                t_ns,
                f"gpu{i}",
                {
                    "memory_used_bytes": int(6.2e9 + busy * 3e8),
                    "utilization_gpu_share": min(1.0, busy / 4),
                    "utilization_memory_share": min(1.0, busy / 8),
                    "power_w": power_w,
                    "power_average_w": power_w,
                    "energy_j": energy_j[i],
                    "clock_sm_mhz": 1_980 - (240 if mask & (CAP | HEAT) else 0),
                    "clock_memory_mhz": 2_619,
                    "temperature_c": 41 + min(30, tick // 2) + i,
                    "throttle_reasons": mask,
                    "gpm_sm_share": min(1.0, busy / 4),
                    "pcie_rx_bytes": tick * 1_000_000,
                    "pcie_tx_bytes": tick * 400_000,
                },
            )
