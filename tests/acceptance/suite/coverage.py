"""Branch coverage of metrics and store, and tests that sleep."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.bars import Bars
from tests.acceptance.clone import ROOT

_SLEEP = re.compile(r"\bsleep\(\s*([0-9.]+)")
_POLL_S = 0.01
"""Shorter sleeps are allowed: polls of another process, and the heartbeat whose lateness a test measures."""


def percent(report: dict[str, dict[str, dict[str, float]]], prefix: str) -> float:
    """Percentage of lines and branches covered, in all files whose paths begin with ``prefix``."""
    totals = [entry["summary"] for name, entry in report["files"].items() if name.startswith(prefix)]
    covered = sum(t["covered_lines"] + t["covered_branches"] for t in totals)
    return 100 * covered / sum(t["num_statements"] + t["num_branches"] for t in totals)


def sleepers() -> list[str]:
    """Lines under tests/ that sleep for a fixed time on the real clock; virtual time (``run_virtual``) costs none."""
    lines: list[str] = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "run_virtual" in text:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if any(float(seconds) > _POLL_S for seconds in _SLEEP.findall(line)):
                lines.append(f"{file.relative_to(ROOT)}:{number}")
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "coverage.json")
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "tests/results",
            "--cov=results",
            "--cov-branch",
            f"--cov-report=json:{out}",
        ]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        print(done.stdout[-1500:])
        report = json.loads(out.read_text(encoding="utf-8"))
    waiting = sleepers()
    print("tests that sleep:", waiting or "none")
    bars = Bars()
    bars.add("tests_exit_code", done.returncode, "==", 0)
    bars.add("coverage_metrics_percent", percent(report, "results/metrics/"), ">=", 95)
    bars.add("coverage_store_percent", percent(report, "results/log/store.py"), ">=", 95)
    bars.add("sleeping_tests", len(waiting), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
