"""Gates on this machine, with real servers: the engine against itself, and against one that is 10 % slower.

    python -m benchmarks.statistics.real_gates [--gates 20] [--kinds aa ab] [--at-once 1]

Each gate is `bakeoff gate real_gates.toml`, as a user would run it: fresh servers, interleaved, ended when the verdict
is clear. Kinds take turns, so that slow changes of the machine affect both alike. Twenty of each take about two hours.
Several can run at once if each can have its own cores, and its own GPU if there is any. On a GPU, kernel launches limit
the small model's steps, at a speed that differs by a tenth between starts. There, make a model of few wide layers
(`python -m benchmarks.wide_model LIKE FOLDER`) and pass it as `--model`.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bakeoff.harness.cli.exits import EXIT_INVALID
from bakeoff.harness.host.gpu import open_gpus, visible_to
from benchmarks.bars import Bars, model_argument

EXPERIMENT = Path(__file__).with_suffix(".toml")
PRIMARY = "itl_p50_s"  # a slower step raises it; in short trials the output rate changes in steps
CANDIDATES = {"aa": "main", "ab": "slower"}


def gate(experiment: Path, candidate: str, cores: Sequence[int], gpu: str) -> tuple[int, str]:
    """The exit code of one gate on these cores and this GPU, and a line about it."""
    argv = [
        "taskset", "--cpu-list", ",".join(map(str, cores)),
        sys.executable, "-c", "from bakeoff.harness.entry import main; main()", "gate", experiment,
        "--baseline", "main", "--candidate", candidate, "--primary", PRIMARY, "--out", experiment.parent, "--json",
    ]  # fmt: skip
    started_s = time.monotonic()
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    seconds = time.monotonic() - started_s
    if not done.stdout and done.returncode != EXIT_INVALID:
        sys.exit(f"no verdict, exit {done.returncode}: {done.stderr.strip()}")  # a crash exits 1, too
    if not done.stdout:
        return done.returncode, f"{seconds:.0f} s: {done.stderr.strip().splitlines()[-1:]}"
    verdict = json.loads(done.stdout)
    return done.returncode, f"{seconds:.0f} s: {verdict['outcome']}: {verdict['sentence']} {verdict['regressions']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=20, help="of each kind (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=CANDIDATES, default=[*CANDIDATES])
    parser.add_argument("--at-once", type=int, default=1, help="so many side by side (default: %(default)s)")
    model_argument(parser)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    visible = visible_to(os.environ.get("CUDA_VISIBLE_DEVICES"), open_gpus()[0])
    gpus = [gpu.identity()["uuid"] for gpu in visible]
    limit = max(1, len(gpus or cores[1::2]))  # each gate needs a core for the engine and one for the client
    if not 1 <= options.at_once <= limit:
        parser.error(f"--at-once must lie between 1 and {limit}, so that none shares cores or a GPU")
    share = len(cores) // options.at_once
    free: queue.SimpleQueue[tuple[list[int], str]] = queue.SimpleQueue()
    for number in range(options.at_once):
        free.put((cores[number * share : (number + 1) * share], gpus[number] if gpus else ""))
    codes: dict[str, Counter[int]] = {kind: Counter() for kind in options.kinds}
    with tempfile.TemporaryDirectory() as folder:
        experiment = Path(folder, EXPERIMENT.name)
        experiment.write_text(EXPERIMENT.read_text(encoding="utf-8").replace("MODEL", options.model), encoding="utf-8")

        def run_gate(number: int, kind: str) -> None:
            resources = free.get()
            code, line = gate(experiment, CANDIDATES[kind], *resources)
            free.put(resources)
            codes[kind][code] += 1
            print(f"{kind} {number}: exit {code}, {line}", flush=True)

        with ThreadPoolExecutor(options.at_once) as pool:
            gates = [(number, kind) for number in range(1, options.gates + 1) for kind in options.kinds]
            for future in [pool.submit(run_gate, *job) for job in gates]:
                future.result()
    bars = Bars()
    for kind, counts in codes.items():
        print(f"{kind}: " + ", ".join(f"exit {code}: {count}" for code, count in sorted(counts.items())))
    if "aa" in codes:
        bars.add("false_alarms_of_20", codes["aa"][1] * 20 / options.gates, "<=", 1)
        bars.add("invalid_gates", codes["aa"][3], "==", 0)
    if "ab" in codes:
        bars.add("found_of_20", codes["ab"][1] * 20 / options.gates, ">=", 19)
    bars.finish()


if __name__ == "__main__":
    main()
