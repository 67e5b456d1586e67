"""Benchmarks whose measurement is an experiment file."""

import subprocess
import sys
import tomllib
from pathlib import Path


def measured(experiment: Path, out: Path, *, resume: bool = False) -> Path:
    """Run an experiment file through ``bakeoff run``; returns the run's folder.

    Args:
        experiment: the TOML file.
        out: parent folder of the run's folder.
        resume: continue the latest run of the same name, if there is one.
    """
    bakeoff = Path(sys.executable).with_name("bakeoff")
    runs = f"*-{tomllib.loads(experiment.read_text(encoding='utf-8'))['name']}-*"
    flags = ["--resume", "latest"] if resume and any(out.glob(f"{runs}/run.jsonl")) else []
    before = set(out.glob(runs))
    subprocess.run([bakeoff, "run", experiment, "--out", out, *flags], check=False)
    created = set(out.glob(runs)) - before
    if not created:
        sys.exit(f"bakeoff run {experiment} left no run in {out}")
    return max(created)
