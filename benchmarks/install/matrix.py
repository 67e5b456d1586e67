"""The wheel in an empty folder: versions of Python, lowest and newest dependencies, and other tools beside it.

    python -m benchmarks.install.matrix [--pythons python3.11 python3.12 python3.13]

uv, of ``make lock``, makes the environments. In each, ``bakeoff bench`` measures a truth server. Other tools are
resolved beside the core, which installs nothing.
"""

import argparse
import asyncio
import os
import subprocess
import tempfile
import tomllib
from pathlib import Path

from bakeoff.harness.truth import Schedule, truth_process
from benchmarks.bars import Bars

ROOT = Path(__file__).parents[2]
UV = ROOT / ".venv-release/bin/uv"
BESIDE = ("aiperf==0.13.0", "guidellm==0.8.1", "vllm==0.33.0")
RESOLUTIONS = ("lowest-direct", "highest")
BENCH = [
    "--tokenizer",
    "approximate",
    "--workload",
    "random",
    "--option",
    "input_tokens=32",
    "--option",
    "output_tokens=16",
    "--concurrency",
    "2",
    "--duration",
    "3",
    "--no-calibrate",
    "--max-foreign-share",
    "1",
]


def call(*argv: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return subprocess.run(list(map(str, argv)), cwd=cwd, env=env, capture_output=True, text=True, check=False)


async def measure(options: argparse.Namespace, folder: Path, wheel: Path, bars: Bars) -> None:
    async with truth_process(Schedule(0.02, 0.005)) as truth:
        for python in options.pythons:
            for resolution in RESOLUTIONS:
                place = folder / f"{python}-{resolution}"
                made = call(UV, "venv", "--python", python, place, cwd=folder)
                installed = call(
                    UV,
                    "pip",
                    "install",
                    "--python",
                    place / "bin/python",
                    "--resolution",
                    resolution,
                    wheel,
                    cwd=folder,
                )
                done = await asyncio.to_thread(call, place / "bin/bakeoff", "bench", truth.url, *BENCH, cwd=folder)
                is_valid = "1 of 1 trials valid" in done.stderr + done.stdout
                print(f"{python} {resolution}: {'VALID' if is_valid else made.stderr + installed.stderr + done.stderr}")
                bars.add(f"valid_{Path(python).name}_{resolution}", is_valid, "==", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=["python3.11", "python3.12", "python3.13"])
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = call(UV, "build", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
        assert built.returncode == 0, built.stderr
        (wheel,) = folder.glob("*.whl")
        asyncio.run(measure(options, folder, wheel, bars))
        core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
        for other in BESIDE:
            (folder / "beside.in").write_text("\n".join([*core, other]), encoding="utf-8")
            resolved = call(UV, "pip", "compile", "--quiet", "--python-version", "3.12", "beside.in", cwd=folder)
            print(f"beside {other}: {'resolved' if resolved.returncode == 0 else resolved.stderr}")
            bars.add(f"resolved_beside_{other.partition('==')[0]}", resolved.returncode == 0, "==", 1)
    bars.finish()


if __name__ == "__main__":
    main()
