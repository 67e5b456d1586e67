"""Pages of DCGM's exporter: their values in our units, MIG slices, and energy by readings that are seconds apart."""

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from bakeoff.harness.host.machine_state import machine_findings
from bakeoff.harness.telemetry.exporter import Device, ExporterProbe, ExporterReader
from bakeoff.harness.telemetry.orders import ExporterPage
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.metrics.energy import energy, second_sources
from bakeoff.results.metrics.memory import peak_gpu_bytes
from bakeoff.results.records import TelemetryRecord, Window

NS = 1_000_000_000
LABELS = 'UUID="GPU-{}",device="nvidia{}",modelName="NVIDIA H100",Hostname="node-7",DCGM_FI_DRIVER_VERSION="550.90.07"'


def page(*gpus: int, joules: float = 1000.0, xid: int = 0) -> bytes:
    """As dcgm-exporter 3.3 writes it; of the labels, ``gpu`` stands first or later, by version."""
    lines: list[str] = []
    for field, kind, value in (
        ("DCGM_FI_DEV_SM_CLOCK", "gauge", 1980), ("DCGM_FI_DEV_GPU_TEMP", "gauge", 41),
        ("DCGM_FI_DEV_POWER_USAGE", "gauge", "512.250000"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", joules * 1e3),
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", 97), ("DCGM_FI_DEV_XID_ERRORS", "gauge", xid),
        ("DCGM_FI_DEV_FB_FREE", "gauge", 1), ("DCGM_FI_DEV_FB_USED", "gauge", 2048),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", 4), ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "0.531277"),
    ):  # fmt: skip
        lines += [f"# HELP {field} Help, with (units).", f"# TYPE {field} {kind}"]
        for gpu in gpus:
            own = LABELS.format(gpu, gpu)
            lines.append(
                f'{field}{{{own},gpu="{gpu}"}} {value}' if gpu % 2 else f'{field}{{gpu="{gpu}",{own}}} {value}'
            )
    return "\n".join([*lines, ""]).encode()


def test_values_are_ours_and_in_our_units():
    values = ExporterReader().read(page(0, 1))
    assert [device.label for device in values] == ["gpu0", "gpu1"]
    assert values[Device("1", "", "GPU-1")] == {
        "clock_sm_mhz": 1980, "temperature_c": 41, "power_w": 512.25, "energy_j": 1000.0, "utilization_gpu_share": 0.97,
        "memory_used_bytes": 2048 * 1024**2, "throttle_reasons": 4, "gpm_tensor_share": 0.531277,
    }  # fmt: skip


def test_the_gpus_of_the_engine_are_named_by_index_or_uuid():
    assert [device.number for device in ExporterReader(("2", "GPU-0")).read(page(0, 1, 2))] == ["0", "2"]
    with pytest.raises(ValueError, match="by a bakeoff_ name of GPU 7"):
        ExporterReader(("0", "7")).read(page(0))
    with pytest.raises(ValueError, match=r"by a bakeoff_ name$"):
        ExporterReader().read(b"<html>")


AMD_LABELS = 'gpu_id="{}",partition_id="{}",card_model="AMD Instinct MI300X",serial_number="SN{}",hostname="node-a"'


def amd_page(*partitions: tuple[int, int], prefix: str = "") -> bytes:
    """As AMD's device metrics exporter writes it: everything is a gauge, and a partition but the first has no power."""
    lines: list[str] = []
    for gpu, partition in partitions:
        own, is_first = AMD_LABELS.format(gpu, partition, gpu), partition == 0
        lines += [
            f"{prefix}gpu_package_power{{{own}}} {748 if is_first else 0}",
            f"{prefix}gpu_power_usage{{{own}}} {700 if is_first else 0}",
            f"{prefix}gpu_energy_consumed{{{own}}} 1.5e+12",
            f"{prefix}gpu_used_vram{{{own}}} 183265",
            f"{prefix}gpu_gfx_activity{{{own}}} 97",
            f"{prefix}gpu_junction_temperature{{{own}}} 76",
            f'{prefix}gpu_clock{{clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM",{own}}} 1533',
            f'{prefix}gpu_clock{{clock_index="1",clock_type="GPU_CLOCK_TYPE_SYSTEM",{own}}} 132',
            f'{prefix}gpu_clock{{clock_index="8",clock_type="GPU_CLOCK_TYPE_MEMORY",{own}}} 1292',
            f'{prefix}gpu_clock{{clock_index="2",clock_type="GPU_CLOCK_TYPE_VIDEO",{own}}} 900',
            f"{prefix}gpu_ecc_uncorrect_total{{{own}}} 0",
        ]
    return "\n".join([*lines, ""]).encode()


@pytest.mark.parametrize("prefix", ["", "amd_"])
def test_amds_values_are_ours_and_in_our_units(prefix: str):
    values = ExporterReader(("SN1",)).read(amd_page((0, 0), (1, 0), prefix=prefix))
    assert values == {
        Device("1", "", "SN1"): {
            "power_w": 748, "energy_j": pytest.approx(1.5e6), "memory_used_bytes": 183265 * 1024**2,
            "utilization_gpu_share": pytest.approx(0.97), "temperature_c": 76, "clock_sm_mhz": 1533,
            "clock_memory_mhz": 1292, "ecc_uncorrected_errors": 0,
        }
    }  # fmt: skip


def test_amds_partitions_share_the_power_of_their_gpu():
    values = ExporterReader().read(amd_page((0, 0), (0, 1)))
    assert [(device.label, each["power_w"], each["energy_j"]) for device, each in values.items()] == [
        ("gpu0", None, None), ("gpu0.1", None, None),
    ]  # fmt: skip


def test_other_power_sources_have_names_of_our_own():
    body = b'bakeoff_power_watts{gpu="psu-1"} 612.5\nbakeoff_energy_joules_total{gpu="psu-1"} 18250311\n'
    ((device, values),) = ExporterReader(("psu-1",)).read(body).items()
    assert (device.label, values) == ("gpu psu-1", {"power_w": 612.5, "energy_j": 18250311})


def test_a_value_that_is_no_number_loses_no_other():
    wrong = (("MEM_CLOCK", "NaN"), ("XID_ERRORS", "+Inf"), ("CLOCKS_EVENT_REASONS", "NaN"))
    lines = (f'DCGM_FI_DEV_{field}{{gpu="0",UUID="GPU-0"}} {value}\n' for field, value in wrong)
    body = page(0) + "".join(lines).encode()
    (values,) = ExporterReader().read(body).values()
    assert (values["energy_j"], values["throttle_reasons"]) == (1000.0, 4)
    assert not {"clock_memory_mhz", "xid"} & values.keys()


def test_openmetrics_names_counters_with_a_suffix():
    body = page(0).replace(b"ENERGY_CONSUMPTION{", b"ENERGY_CONSUMPTION_total{")
    body = body.replace(b"THROTTLE_REASONS{", b"THROTTLE_REASONS_total{")
    (values,) = ExporterReader().read(body).values()
    assert (values["energy_j"], values["throttle_reasons"]) == (1000.0, 4)
    assert "xid" not in values


def test_slices_of_one_gpu_have_no_power_of_their_own():
    line = 'DCGM_FI_DEV_{}{{gpu="0",UUID="GPU-0",GPU_I_PROFILE="2g.20gb",GPU_I_ID="{}"}} {}\n'
    body = "".join(
        line.format(field, slice_id, value)
        for slice_id in (3, 5)
        for field, value in (("TOTAL_ENERGY_CONSUMPTION", 257858316), ("POWER_USAGE", 54.5), ("FB_USED", 12 + slice_id))
    )
    values = ExporterReader().read(body.encode())
    assert [device.label for device in values] == ["gpu0.3", "gpu0.5"]
    assert [(each["energy_j"], each["power_w"], each["shares_chip"]) for each in values.values()] == [
        (None, None, 1)
    ] * 2
    assert [each["memory_used_bytes"] for each in values.values()] == [15 * 1024**2, 17 * 1024**2]


def test_an_error_counts_when_it_is_new_not_as_long_as_it_is_shown():
    reader = ExporterReader()
    seen = [next(iter(reader.read(page(0, xid=xid)).values())).get("xid") for xid in (31, 31, 48, 48)]
    assert seen == [None, None, 48, None]


def readings(source: str, interval_s: float, watts: float, *, phase_s: float = 0.7) -> list[TelemetryRecord]:
    """Two a second for 120 s, of an exporter that reads the GPU every ``interval_s``."""
    times = [k / 2 for k in range(240)]
    joules = [5e6 + watts * ((t - phase_s) // interval_s) * interval_s for t in times]
    return [TelemetryRecord(round(t * NS), source, {"energy_j": j}) for t, j in zip(times, joules, strict=True)]


@pytest.mark.parametrize(("interval_s", "window"), [(1.0, (20, 50)), (10.0, (20, 110)), (30.0, (25, 95))])
def test_energy_is_known_from_readings_that_are_seconds_apart(interval_s: float, window: tuple[int, int]):
    telemetry = [*readings("gpu0@a:9400", interval_s, 400.0), *readings("gpu0@b:9400", interval_s, 300.0, phase_s=0.2)]
    found = energy(telemetry, Window(window[0] * NS, window[1] * NS)).total_j
    assert found.value is not None
    assert found.value == pytest.approx(700.0 * (window[1] - window[0]), rel=0.001 if interval_s == 1 else 0.02)


def test_figures_of_two_hosts_are_not_those_of_the_one_that_answers():
    failed = TelemetryRecord(1, "exporter at b:9400", {"scrape_s": None}, {"scrape_s": "refused"})
    telemetry = [*readings("gpu0@a:9400", 1.0, 400.0), failed]
    assert energy(telemetry, Window(20 * NS, 50 * NS)).total_j.reason == "exporter at b:9400: refused"
    assert peak_gpu_bytes([*telemetry, TelemetryRecord(2, "gpu0@a:9400", {"memory_used_bytes": 5})]).value is None


def test_a_window_between_two_readings_has_no_energy():
    found = energy(readings("gpu0@a:9400", 60.0, 400.0), Window(65 * NS, 95 * NS)).total_j
    assert found.reason is not None
    assert "set a shorter interval (dcgm-exporter -c)" in found.reason


def nvml(watts: float) -> list[TelemetryRecord]:
    times = [k / 10 for k in range(1200)]
    return [TelemetryRecord(round(t * NS), "gpu0", {"energy_j": watts * t, "power_w": watts}) for t in times]


def test_a_second_source_is_compared_and_not_added():
    window = Window(20 * NS, 80 * NS)
    agreeing = [*nvml(400.0), *readings("exporter of gpu0", 1.0, 400.0)]
    assert energy(agreeing, window).total_j.value == pytest.approx(24_000)
    (both,) = second_sources(agreeing, window)
    assert both.exporter_j == pytest.approx(both.nvml_j, rel=0.01)
    codes = {finding.code for finding in machine_findings(agreeing, window)}
    assert FindingCode.ENERGY_SOURCES_DISAGREE not in codes
    other = [*nvml(400.0), *readings("exporter of gpu0", 1.0, 420.0)]
    (finding,) = [each for each in machine_findings(other, window) if each.code is FindingCode.ENERGY_SOURCES_DISAGREE]
    assert finding.parameters["nvml_j"] == 24_000


def test_memory_of_hosts_is_added_though_their_readings_are_not_of_one_instant():
    telemetry = [
        TelemetryRecord(t, source, {"memory_used_bytes": used})
        for t, source, used in ((1, "gpu0@a:1", 5), (1, "gpu1@a:1", 6), (2, "gpu0@b:1", 7), (3, "gpu0@a:1", 4))
    ]
    assert peak_gpu_bytes(telemetry).value == 18


@contextlib.contextmanager
def serving(body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_page_becomes_records_and_one_that_fails_says_why():
    found: list[TelemetryRecord] = []
    with serving(page(0, 1)) as url:
        probes = [
            ExporterProbe(ExporterPage(address), found.append, {"GPU-1": "gpu3"}) for address in (url, f"{url}/other")
        ]
        for probe in probes:
            probe.stop()  # which reads each page once more
    place = url.removeprefix("http://")
    assert {record.source for record in found} == {f"gpu0@{place}", "exporter of gpu3", f"exporter at {place}/other"}
    assert "HTTP 404 Not Found at /other" in {reason for record in found for reason in record.reasons.values()}
    window = Window(0, time.monotonic_ns())
    assert energy([record for record in found if record.reasons], window).total_j.reason == (
        f"exporter at {place}/other: HTTP 404 Not Found at /other"
    )
    (finding,) = [each for each in machine_findings(found, window) if each.code is FindingCode.EXPORTER_UNREAD]
    assert finding.parameters["reason"] == "HTTP 404 Not Found at /other"
