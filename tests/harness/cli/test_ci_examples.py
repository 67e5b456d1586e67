"""The workflows of docs/ci and the action: valid for GitHub, of commands that exist, with experiments that exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.conduct.policies.gate import gate_experiment
from bakeoff.harness.experiment.config import load_experiment

CI = Path(__file__).parents[3] / "docs/ci"
WORKFLOWS = sorted(CI.glob("*.yml"))
OWN_WORKFLOW = CI.parents[1] / ".github/workflows/ci.yml"


def commands(workflow: Path) -> list[list[str]]:
    """The words after ``bakeoff`` of each line that runs it."""
    command_lines = re.findall(r"bin/bakeoff (.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line.partition(" | ")[0]) for line in command_lines]


@pytest.mark.parametrize("workflow", [*WORKFLOWS, OWN_WORKFLOW], ids=lambda path: path.stem)
def test_github_takes_it(workflow: Path) -> None:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_its_commands_exist(workflow: Path) -> None:
    app = make_app()
    assert commands(workflow)
    for words in commands(workflow):
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_gate_names_engines_of_its_experiment() -> None:
    (words,) = commands(CI / "pull-request.yml")
    a, b = (words[words.index(option) + 1] for option in ("--baseline", "--candidate"))
    made, *labels = gate_experiment(load_experiment(CI / words[1]), a, b)
    assert labels == [a, b]
    assert made.repeats == 8


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_no_run_folder_becomes_an_artifact(workflow: Path) -> None:
    """Anyone can download artifacts of a public repository, and a run holds whole answers and the engines' logs."""
    uploads = workflow.read_text(encoding="utf-8").split("upload-artifact")[1:]
    paths = [line.strip() for upload in uploads for line in upload.splitlines() if line.strip().startswith("head/")]
    assert not [path for path in paths if not path.endswith((".md", ".xml"))]
    assert bool(paths) == bool(uploads)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_no_expression_stands_in_a_script(workflow: Path) -> None:
    """GitHub expands expressions before the shell reads the script, so that a stranger's text would run."""
    steps = re.findall(r"run: (\|\n(?: {10}.*\n)+|.*)", workflow.read_text(encoding="utf-8"))
    assert steps
    assert not [step for step in steps if "${{" in step]


def test_the_action_is_valid_and_calls_the_gate() -> None:
    action = CI.parents[1] / "action.yml"
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(action)]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).returncode == 0
    text = action.read_text(encoding="utf-8")
    scripts = re.findall(r"run: ((?:>-\n(?: {8}.*\n)+)|.*)", text)
    assert len(scripts) == 3
    assert not [script for script in scripts if "${{" in script]
    (gate,) = (script for script in scripts if "bakeoff gate" in script or '/bakeoff" gate' in script)
    words = shlex.split(
        gate.removeprefix(">-").partition(" gate ")[2].replace('${EXPERIMENT:+"$EXPERIMENT"}', "x.toml")
    )
    make_app().parse_args(["gate", *words[: words.index("$OPTIONS")]], exit_on_error=False, print_error=False)
