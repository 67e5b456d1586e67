"""Run the commands of each tutorial as written, and compare what they print with what the page shows.

``python -m tests.acceptance.docs.tutorials [NAME …]``: each page runs in an empty folder. Its ``toml`` blocks with a
title become files; each line of a ``console`` block that begins with ``$`` is given to one shell, in order. Every line
that a page shows must be printed after the one before it; numbers may differ, and ``…`` stands for any text.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[3]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[\d.,:]*\d")
_END = "end of the commands"


class Step(msgspec.Struct, frozen=True):
    """A command, and the lines that the page shows below it."""

    command: str
    shown: list[str]


class Tutorial(msgspec.Struct, frozen=True):
    """A page: its files by name, and its steps in order."""

    files: dict[str, str]
    steps: list[Step]


def read(page: Path) -> Tutorial:
    """Read a page's files and commands."""
    files: dict[str, str] = {}
    steps: list[Step] = []
    for kind, title, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "toml" and title:
            files[title] = text
        elif kind == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    steps.append(Step(line[2:], []))
                else:
                    steps[-1].shown.append(line)
    return Tutorial(files, steps)


def missing(shown: list[str], printed: str) -> str | None:
    """The first shown line that was not printed after the line before it; None if all were."""
    at, text = 0, _plain(printed)
    for line in shown:
        words = [".*?" if word == "…" else re.escape(word) for word in _plain(line).replace("…", " … ").split()]
        pattern = r"\s+".join(words).replace(r"\s+.*?", r"\s*.*?").replace(r".*?\s+", r".*?")
        found = re.compile(pattern, re.DOTALL).search(text, at)
        if found is None:
            return line
        at = found.end()
    return None


def run(page: Path, folder: Path) -> list[str]:
    """Run a page's commands in a folder; returns what went wrong."""
    tutorial = read(page)
    for name, text in tutorial.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    marks = [f"{_END} {number}" for number in range(len(tutorial.steps))]
    script = "\n".join(
        f"{step.command}\necho '{mark}' exit=$?" for step, mark in zip(tutorial.steps, marks, strict=True)
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    rest = ""
    for line in shell.stdout:  # servers in the background keep the pipe open, so its end is not waited for
        rest += line
        if line.startswith(marks[-1]):
            break
    os.killpg(shell.pid, signal.SIGINT)  # the servers
    problems: list[str] = []
    for step, mark in zip(tutorial.steps, marks, strict=True):
        printed, _, rest = rest.partition(mark)
        code, _, rest = rest.partition("\n")
        print(f"$ {step.command}\n{printed.strip()}", flush=True)
        if code.strip() != "exit=0":
            problems.append(f"{page.name}: `{step.command}` ended with {code.strip()}")
        if line := missing(step.shown, printed):
            problems.append(f"{page.name}: `{step.command}` did not print: {line}")
    return problems


def _plain(text: str) -> str:
    return _NUMBER.sub("0", " ".join(text.split()))


def main() -> int:
    """Run the pages that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of tutorials, without .md")
    names = parser.parse_args().names
    problems: list[str] = []
    for page in TUTORIALS:
        if not names or page.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                problems += run(page, Path(folder))
    print("\n".join(problems) or "all tutorials hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
