"""The steps of the Dockerfile without Docker, from its first line to the first table of a running server.

    python -m benchmarks.install.container_steps [--python python3.13]

An empty folder stands for the image's root and holds what COPY names, nothing else. The environment and its caches are
new; packages come from where pip is set to take them, so the time contains their download.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bars import Bars
from benchmarks.dockerfile import Step, read_stages

ROOT = Path(__file__).parents[2]
STAGES = ("wheel", "core-environment")
SLIM_MB = 45
"""Compressed size of the image python:3.13-slim, upon which the environment lies."""
MB = 1e6
BENCH = ("--concurrency", "4", "--duration", "5", "--scale", "0.25", "--no-calibrate", "--max-foreign-share", "1")


class Root:
    """An empty folder in place of the image's root.

    Args:
        folder: the folder.
        python: interpreter that ``python`` and ``pip`` stand for.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self._working = folder
        programs = folder / "bin"
        programs.mkdir()
        for name, module in (("python", ""), ("pip", " -m pip")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{python}"{module} "$@"\n')
            program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        self.environment = {**kept, "PATH": f"{programs}:{kept['PATH']}", "HOME": str(folder)}

    def path(self, place: str) -> Path:
        """Where the image's ``place`` is here."""
        return self.folder / place.lstrip("/")

    def take(self, step: Step) -> None:
        """Do what one instruction says."""
        if step.keyword == "WORKDIR":
            self._working = self.path(step.text)
            self._working.mkdir(parents=True, exist_ok=True)
        elif step.keyword == "COPY":
            *sources, target = step.words
            for source in sources:
                self._copy(ROOT / source, self._working / target)
        elif step.keyword == "RUN":
            command = re.sub(r"(?<![\w./}])/(?=[a-z])", f"{self.folder}/", step.text)
            subprocess.run(command, shell=True, cwd=self._working, env=self.environment, check=True)
        else:
            assert step.keyword == "ARG", step

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_file():
            shutil.copy(source, target / source.name)
        else:
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


def first_table(root: Root) -> str:
    """Serve the mock of exactly known timing, measure it, and return what ``bakeoff bench`` prints."""
    bakeoff = root.path("/opt/bakeoff/bin/bakeoff")
    place = root.path("/runs")
    place.mkdir()
    with subprocess.Popen(
        [bakeoff, "truth"], cwd=place, env=root.environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+?(?=;)", server.stdout.readline())
            assert address is not None
            argv = [bakeoff, "bench", address[0], *BENCH]
            done = subprocess.run(argv, cwd=place, env=root.environment, capture_output=True, text=True, check=False)
        finally:
            server.terminate()
            server.communicate()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compressed_mb(folder: Path) -> float:
    """Size of ``folder`` as a layer of an image: a tar archive, compressed as registries do."""
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
        with tarfile.open(file.name, "w:gz", compresslevel=6) as archive:
            archive.add(folder, arcname=folder.name)
        return Path(file.name).stat().st_size / MB


def timed(what: str, work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes, printed."""
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    print(f"{seconds:6.1f} s  {what}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment (default: this one)")
    options = parser.parse_args()
    python = shutil.which(options.python)
    assert python is not None, f"there is no {options.python}"
    bars = Bars()
    with tempfile.TemporaryDirectory(prefix="bakeoff-image-") as name:
        root = Root(Path(name), python)
        stages = {stage.name: stage for stage in read_stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))}
        seconds = 0.0
        for step in (step for stage in STAGES for step in stages[stage].steps):
            seconds += timed(f"{step.keyword} {step.text}", lambda step=step: root.take(step))
        tables: list[str] = []
        seconds += timed("bakeoff bench of a running server", lambda: tables.append(first_table(root)))
        print(tables[0])
        (wheel,) = root.path("/wheels").glob("*.whl")
        bars.add("install_and_first_table_s", seconds, "<=", 60)
        bars.add("wheel_mb", wheel.stat().st_size / MB, "<=", 2)
        bars.add("core_image_compressed_mb", compressed_mb(root.path("/opt/bakeoff")) + SLIM_MB, "<=", 250)
        torch = list(root.path("/opt/bakeoff").glob("lib/python*/site-packages/torch"))
        bars.add("torch_in_the_core", len(torch), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
