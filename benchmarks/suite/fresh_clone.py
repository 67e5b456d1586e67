"""Bar 2a: `make test` in a fresh clone without any cache. Run by ``make bench-suite``."""

import subprocess
import time

from benchmarks.bars import Bars
from benchmarks.clone import fresh_clone


def main() -> None:
    with fresh_clone() as (folder, environment):
        started = time.monotonic()
        done = subprocess.run(
            ["make", "test"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        minutes = (time.monotonic() - started) / 60
    print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
    bars = Bars()
    bars.add("make_test_exit_code", done.returncode, "==", 0)
    bars.add("make_test_minutes", minutes, "<=", 12)
    bars.finish()


if __name__ == "__main__":
    main()
