"""Benchmarks whose measurement is an experiment file."""

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def measured(experiment: Path, out: Path, *, resume: bool = False, command: Sequence[str] = ("run",)) -> Path:
    """Run an experiment file through ``bakeoff``; returns the run's folder.

    Args:
        experiment: the TOML file.
        out: parent folder of the run's folder.
        resume: continue the latest run of the same name, if there is one.
        command: subcommand with its options.
    """
    bakeoff = Path(sys.executable).with_name("bakeoff")
    runs = f"*-{tomllib.loads(experiment.read_text(encoding='utf-8'))['name']}-*"
    flags = ["--resume", "latest"] if resume and any(out.glob(f"{runs}/run.jsonl")) else []
    before = set(out.glob(runs))
    subprocess.run([bakeoff, *command, experiment, "--out", out, *flags], check=False)
    created = set(out.glob(runs)) - before
    if not created:
        sys.exit(f"bakeoff {command[0]} {experiment} left no run in {out}")
    return max(created)
