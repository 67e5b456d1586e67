"""The wheel in a fresh environment, beside a project whose folders are named like ours.

    python -m tests.acceptance.suite.wheel [--python python3.13]

The environment gains ``bakeoff`` and its metadata only; ``bakeoff`` and the pytest fixture work in a project with its
own ``results``, ``engines``, ``harness`` and ``workloads``, with and without ``__init__.py``; the core needs no torch;
the source distribution holds only what it names; ``bakeoff report`` works on a simulated macOS; mypy and pyright accept
tests/typed_program.py and know at least 95 % of the types.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from benchmarks.bars import Bars
from tests.results.builders import Sheet, build_run

ROOT = Path(__file__).parents[3]
FOLDERS = ("results", "engines", "harness", "workloads", "reference_engine")
TEST = """
import results, engines, harness, workloads

def test_the_fixture_is_there(bakeoff):
    import bakeoff as api
    assert all("site-packages" not in path for package in (results, engines, harness, workloads)
               for path in package.__path__)
    assert api.load({run!r}).finished
"""


def call(*argv: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(list(map(str, argv)), cwd=cwd, env=env, capture_output=True, text=True, check=False)


def entries(site: Path) -> set[str]:
    return {entry.name for entry in site.iterdir() if entry.name != "__pycache__"}


def types(environment: Path, folder: Path, bars: Bars) -> None:
    """Let type checkers of a user read the installed package."""
    program = folder / "program.py"
    shutil.copy(ROOT / "tests/typed_program.py", program)
    tools = Path(sys.executable).parent
    python = environment / "bin" / "python"
    by_mypy = call(tools / "mypy", "--strict", "--python-executable", python, program, cwd=folder)
    by_pyright = call(tools / "pyright", "--pythonpath", python, program, cwd=folder)
    for done in (by_mypy, by_pyright):
        print(done.stdout if done.returncode else "", end="")
    bars.add("checkers_that_refuse_the_program", (by_mypy.returncode != 0) + (by_pyright.returncode != 0), "==", 0)
    path = f"{python.parent}:{os.environ['PATH']}"  # --verifytypes takes the first interpreter of it
    asked = ("--verifytypes", "bakeoff", "--ignoreexternal", "--outputjson")
    verify = call(tools / "pyright", *asked, cwd=folder, PATH=path)
    share = json.loads(verify.stdout)["typeCompleteness"]["completenessScore"]
    bars.add("share_of_known_types", share, ">=", 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment (default: this one)")
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = call(
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder
        )
        assert built.returncode == 0, built.stderr
        (wheel,) = folder.glob("*.whl")
        environment = folder / "environment"
        assert call(options.python, "-m", "venv", environment, cwd=folder).returncode == 0
        python = environment / "bin" / "python"
        (site,) = environment.glob("lib/python*/site-packages")
        needed = call(python, "-m", "pip", "install", "--quiet", wheel, "pytest", cwd=folder)
        assert needed.returncode == 0, needed.stderr
        installed = entries(site)
        assert call(python, "-m", "pip", "uninstall", "--quiet", "--yes", "bakeoff", cwd=folder).returncode == 0
        own = installed - entries(site)
        print(f"the wheel adds {', '.join(sorted(own))}")
        bars.add("entries_beside_bakeoff", len([one for one in own if not one.startswith("bakeoff")]), "==", 0)
        assert call(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=folder).returncode == 0
        bars.add("torch_is_installed", "torch" in entries(site), "==", 0)

        run = build_run(folder / "runs", Sheet())
        for kind, has_init in (("packages", True), ("plain_folders", False)):
            project = folder / kind
            for package in FOLDERS:
                (project / package).mkdir(parents=True)
                if has_init:
                    (project / package / "__init__.py").write_text("")
            (project / "test_chat.py").write_text(TEST.format(run=str(run)))
            reported = call(environment / "bin" / "bakeoff", "report", run, cwd=project)
            as_module = call(python, "-m", "bakeoff", "report", run, cwd=project)
            tested = call(python, "-m", "pytest", "-q", cwd=project)
            for done in (reported, as_module, tested):
                print(done.stdout[-2000:] + done.stderr if done.returncode else "", end="")
            failed = sum(done.returncode != 0 for done in (reported, as_module, tested))
            bars.add(f"failures_beside_{kind}", failed, "==", 0)
        macos = str(ROOT / "tests/harness/simulated_mac")
        elsewhere = call(environment / "bin" / "bakeoff", "report", run, cwd=folder, PYTHONPATH=macos)
        print(elsewhere.stderr if elsewhere.returncode else "", end="")
        bars.add("report_fails_on_macos", elsewhere.returncode, "==", 0)
        types(environment, folder, bars)

        assert call(
            sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "build", "build", cwd=folder
        )
        env = {**os.environ, "PYTHONPATH": str(folder / "build")}
        argv = [sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT)]
        assert subprocess.run(argv, env=env, cwd=folder, capture_output=True, check=False).returncode == 0
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            tops = {member.name.split("/")[1] for member in archive.getmembers()}
        stray = tops - {"src", "README.md", "LICENSE", "PKG-INFO", "pyproject.toml", ".gitignore", "hatch_build.py"}
        bars.add("stray_entries_of_the_source_distribution", len(stray), "==", 0)

        without_links = folder / "without-links"
        subprocess.run(["git", "clone", "-q", "-c", "core.symlinks=false", ROOT, without_links], check=True)
        refused = call(sys.executable, "-m", "pip", "wheel", "--no-deps", without_links, cwd=folder)
        said = "the links in src/bakeoff are missing" in refused.stdout + refused.stderr
        bars.add("a_checkout_without_links_is_refused", said and refused.returncode != 0, "==", 1)
    bars.finish()


if __name__ == "__main__":
    main()
