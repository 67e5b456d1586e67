"""Benchmarks whose measurement is an experiment file."""

import subprocess
import sys
import tomllib
from pathlib import Path


def measured(experiment: Path, out: Path, *, resume: bool = False) -> Path:
    """Run an experiment file through ``bakeoff run``; returns the run's folder.

    Args:
        experiment: the TOML file.
        out: folder in which the run's folder is made.
        resume: go on with the latest run of its name, where there is one.
    """
    bakeoff = Path(sys.executable).with_name("bakeoff")
    runs = f"*-{tomllib.loads(experiment.read_text(encoding='utf-8'))['name']}-*"
    flags = ["--resume", "latest"] if resume and any(out.glob(f"{runs}/run.jsonl")) else []
    before = set(out.glob(runs))
    subprocess.run([bakeoff, "run", experiment, "--out", out, *flags], check=False)
    made = set(out.glob(runs)) - before
    if not made:
        sys.exit(f"bakeoff run {experiment} left no run in {out}")
    return max(made)
