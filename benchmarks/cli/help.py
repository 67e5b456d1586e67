"""``bakeoff --help`` is quick. Run by ``make bench-cli``; median of 9 starts."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bars import Bars


def main() -> None:
    argv = [Path(sys.executable).with_name("bakeoff"), "--help"]
    times_ms = []
    for _ in range(9):
        started = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        times_ms.append((time.perf_counter() - started) * 1e3)
        assert "demo" in done.stdout
    print("starts: " + ", ".join(f"{value:.0f}" for value in sorted(times_ms)) + " ms")
    bars = Bars()
    bars.add("help_ms", statistics.median(times_ms), "<=", 300)
    bars.finish()


if __name__ == "__main__":
    main()
