"""Energy by a DCGM exporter's page beside NVML's own, on a GPU whose load comes and goes.

    python -m benchmarks.gpu.exporter [--intervals 1 10]

A stand-in for the exporter, a process of its own, reads NVML at an interval and shows the last reading in between, as
the exporter does. Matrix products keep the GPU busy for two of every three seconds while the product's sampler reads
NVML and the page. Their energies over the same window must be within 3 %.
"""

import argparse
import asyncio
import http.server
import sys
import tempfile
import threading
import time
from pathlib import Path

import pynvml
import torch

from bakeoff.engines import pick_port
from bakeoff.harness.telemetry import ExporterPage, sampler
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.metrics.energy import second_sources
from bakeoff.results.records import Window
from benchmarks.bars import Bars

NS, MAX_DIFFERENCE = 1_000_000_000, 0.03
PAGE = """# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="{uuid}",device="nvidia0"}} {watts:.6f}
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="{uuid}",device="nvidia0"}} {millijoules}
"""


def serve(port: int, interval_s: float) -> None:
    """Serve the page of the first GPU, read every ``interval_s``."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    shown = [b""]

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(shown[0])))
            self.end_headers()
            self.wfile.write(shown[0])

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        shown[0] = PAGE.format(
            uuid=pynvml.nvmlDeviceGetUUID(gpu), watts=pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            millijoules=pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        ).encode()  # fmt: skip
        time.sleep(interval_s)


def work(stopped: threading.Event) -> None:
    """Keep the GPU busy for two of every three seconds."""
    matrix = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    while not stopped.is_set():
        end_s = time.monotonic() + 2
        while time.monotonic() < end_s:
            matrix @ matrix
            torch.cuda.synchronize()
        stopped.wait(1)


async def measure(interval_s: float, folder: TrialFolder) -> float:
    """The exporter's energy over NVML's, over a window of six intervals and at least 30 s."""
    port, window_s = pick_port(), max(30.0, 6 * interval_s)
    stand_in = [sys.executable, "-m", "benchmarks.gpu.exporter", "--serve", str(port), "--intervals", str(interval_s)]
    process, stopped = await asyncio.create_subprocess_exec(*stand_in), threading.Event()
    worker = threading.Thread(target=work, args=(stopped,))
    worker.start()
    await asyncio.sleep(2)
    folder.create()
    page = ExporterPage(f"http://127.0.0.1:{port}")
    async with sampler() as running, running.into(folder.telemetry_log, [], [], gpus="0", exporters=[page]):
        await asyncio.sleep(interval_s + 1)
        start_ns = time.monotonic_ns()
        await asyncio.sleep(window_s)
        window = Window(start_ns, time.monotonic_ns())
        await asyncio.sleep(interval_s + 1)
    stopped.set()
    worker.join()
    process.terminate()
    await process.wait()
    (found,) = second_sources(folder.read_telemetry().records, window)
    difference = found.exporter_j / found.nvml_j - 1
    joules = f"NVML {found.nvml_j:,.0f} J, page {found.exporter_j:,.0f} J"
    print(f"every {interval_s:g} s: {joules}, {difference:+.2%}", flush=True)
    return difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--intervals", type=float, nargs="+", default=[1.0, 10.0], help="of the exporter, in seconds")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.intervals[0])
    bars = Bars()
    for interval_s in options.intervals:
        with tempfile.TemporaryDirectory() as folder:
            difference = asyncio.run(measure(interval_s, TrialFolder(Path(folder) / "trial")))
        bars.add(f"energy_difference_every_{interval_s:g}_s", abs(difference), "<=", MAX_DIFFERENCE)
    bars.finish()


if __name__ == "__main__":
    main()
