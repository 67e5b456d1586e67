"""Bar 2: gates on this machine, with real servers: the engine against itself, and against one that is 10 % slower.

    python -m benchmarks.statistics.real_gates [--gates 20] [--kinds aa ab]

Each gate is `bakeoff gate real_gates.toml`, as a user would run it: fresh servers, interleaved, ended when the verdict
is clear. Kinds take turns, so that both meet the machine in the same moods. Twenty of each take some two hours.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.bars import Bars, model_argument

EXPERIMENT = Path(__file__).with_suffix(".toml")
PRIMARY = "itl_p50_s"  # what a slower step is; in trials of 4 s the output rate has steps of its own
CANDIDATES = {"aa": "main", "ab": "slower"}


def gate(experiment: Path, candidate: str) -> tuple[int, str]:
    """The exit code of one gate, and a line about it."""
    argv = [
        sys.executable, "-c", "from harness.cli import main; main()", "gate", experiment, "--baseline", "main",
        "--candidate", candidate, "--primary", PRIMARY, "--out", experiment.parent, "--json",
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if not done.stdout:
        return done.returncode, f"{seconds:.0f} s: {done.stderr.strip().splitlines()[-1:]}"
    verdict = json.loads(done.stdout)
    return done.returncode, f"{seconds:.0f} s: {verdict['outcome']}: {verdict['sentence']} {verdict['regressions']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=20, help="of each kind (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=CANDIDATES, default=[*CANDIDATES])
    model_argument(parser)
    options = parser.parse_args()
    codes: dict[str, Counter[int]] = {kind: Counter() for kind in options.kinds}
    with tempfile.TemporaryDirectory() as folder:
        experiment = Path(folder, EXPERIMENT.name)
        experiment.write_text(EXPERIMENT.read_text(encoding="utf-8").replace("MODEL", options.model), encoding="utf-8")
        for number in range(1, options.gates + 1):
            for kind in options.kinds:
                code, line = gate(experiment, CANDIDATES[kind])
                codes[kind][code] += 1
                print(f"{kind} {number}: exit {code}, {line}", flush=True)
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
