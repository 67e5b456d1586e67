"""The environment of a run: recorded once, and checked before two runs are compared."""

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from bakeoff import system
from bakeoff.harness.host.cpu import UNREADABLE
from bakeoff.harness.host.gpu import open_gpus
from bakeoff.harness.version import checkout, version
from bakeoff.results.log.run_log import Source

_CI = (
    ("GITHUB_SHA", "GITHUB_HEAD_REF", "GITHUB_REF_NAME"),
    ("CI_COMMIT_SHA", "CI_COMMIT_BRANCH", "CI_COMMIT_REF_NAME"),
)
"""Variables of CI servers: a commit, and the branches in order of preference."""
VERSION = version()


def environment() -> dict[str, Any]:
    """Machine, system, interpreter, GPUs; an absent value is None, with a reason in another field."""
    gpus, no_gpu = open_gpus()
    return {
        "cpu": cpu_model(),
        "cores": len(system.usable_cores()),
        "memory_bytes": _memory_bytes(),
        "kernel": platform.release(),
        "system": _system_name(),
        "python": sys.version.split()[0],
        "gpus": [gpu.identity() for gpu in gpus] or None,
        "gpus_reason": no_gpu,
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def machine(recorded: dict[str, Any]) -> dict[str, Any]:
    """The part of :func:`environment` that is equal for two runs on one machine."""
    return {name: recorded.get(name) for name in ("cpu", "cores", "gpus")}


def git_commit() -> str | None:
    """Commit of the checkout that this package runs from, with ``+`` if it has changes; None outside a checkout.

    An installed package may lie in a venv inside another project's repository, whose commit this is not.
    """
    folder = checkout()
    return _commit(folder) if folder is not None and (folder / ".git").exists() else None


def source(folder: Path, variables: Mapping[str, str]) -> Source | None:
    """Commit and branch of the code under test.

    Args:
        folder: where the run is started.
        variables: of the environment. GitHub's and GitLab's take precedence, since a CI checkout is on no branch.
    """
    for commit_variable, *branch_variables in _CI:
        if variables.get(commit_variable):
            branch = next((variables[name] for name in branch_variables if variables.get(name)), None)
            return Source(variables[commit_variable][:12], branch)
    commit = _commit(folder)
    if commit is None:
        return None
    return Source(commit, _git(folder, "symbolic-ref", "--short", "HEAD"))


def _commit(folder: Path) -> str | None:
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    return f"{commit}+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()


def cpu_model() -> str | None:
    """The processor's name; None where the system does not say it."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        if (files := system.proc()) is not None:
            lines = (files / "cpuinfo").read_text(encoding="utf-8").splitlines()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # macOS
        argv = ["sysctl", "-n", "machdep.cpu.brand_string"]
        if brand := subprocess.run(argv, capture_output=True, text=True, check=True, timeout=5).stdout.strip():
            return brand
    return platform.processor() or None


def _memory_bytes() -> int | None:
    with contextlib.suppress(*UNREADABLE):
        return psutil.virtual_memory().total
    return None


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()
