"""The action of action.yml: valid for GitHub, and its scripts rehearsed in bash with a bakeoff that only exits."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bakeoff.harness.cli import make_app

FILE = Path(__file__).parents[3] / "action.yml"
ACTION = yaml.safe_load(FILE.read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
GATE: dict[str, Any] = next(step for step in STEPS if step.get("id") == "gate")
BAKEOFF = """#!/bin/sh
printf '%s\\n' "$@" > "$RUNNER_TEMP/words"
while [ $# -gt 0 ]; do
  case $1 in --markdown | --junit) test {exit} = 3 || echo "verdict {exit}" > "$2" ;; esac
  shift
done
exit {exit}
"""


class Rehearsal:
    """A job's files, and the gate's step as a runner starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "bakeoff/bin/bakeoff"
        self.program.parent.mkdir(parents=True)
        self.summary = folder / "summary"
        self.summary.touch()

    def use(self, exit_code: int, **inputs: str) -> tuple[int, dict[str, str]]:
        """Exit status and outputs of one use of the action."""
        self.program.write_text(BAKEOFF.format(exit=exit_code))
        self.program.chmod(0o755)
        output = self.folder / "output"
        output.write_text("")
        given = {name: str(entry.get("default", name)) for name, entry in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        env = {name: given[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) }}", text)[1]] for name, text in GATE["env"].items()}
        env |= {"PATH": "/usr/bin:/bin", "RUNNER_TEMP": str(self.folder)}
        env |= {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.summary)}
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", GATE["run"]]
        done = subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, dict(line.split("=", 1) for line in output.read_text().splitlines())

    @property
    def words(self) -> list[str]:
        """The arguments that bakeoff was started with."""
        return (self.folder / "words").read_text().splitlines()


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


def test_github_takes_it():
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(FILE)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("exit_code", "outcome"), [(0, "no-regression"), (1, "regression"), (2, "cannot-tell"), (3, "no-evidence")]
)
@pytest.mark.parametrize("tolerate", ["false", "true"])
def test_the_exit_code_becomes_an_outcome(rehearsal: Rehearsal, exit_code: int, outcome: str, tolerate: str):
    status, outputs = rehearsal.use(exit_code, tolerate_cannot_tell=tolerate)
    assert status == (0 if (exit_code, tolerate) == (2, "true") else exit_code)
    assert outputs["outcome"] == outcome
    written = "" if exit_code == 3 else f"verdict {exit_code}\n"
    assert rehearsal.summary.read_text() == written
    assert (Path(outputs["report"]).read_text() if outputs["report"] else "") == written


def test_the_outputs_are_those_of_the_gate(rehearsal: Rehearsal):
    _, outputs = rehearsal.use(0)
    named = {name: f"${{{{ steps.gate.outputs.{name} }}}}" for name in ACTION["outputs"]}
    assert {name: entry["value"] for name, entry in ACTION["outputs"].items()} == named
    assert set(named) < set(outputs)


def test_a_second_use_in_a_job_has_files_and_an_artifact_of_its_own(rehearsal: Rehearsal):
    _, first = rehearsal.use(0)
    _, second = rehearsal.use(3)
    assert (first["use"], second["use"], second["report"]) == ("1", "2", "")
    assert sorted(path.name for path in Path(first["folder"]).iterdir()) == ["gate.md", "gate.xml"]
    assert list(Path(second["folder"]).iterdir()) == []
    upload = STEPS[-1]
    assert upload["with"]["path"] == "${{ steps.gate.outputs.folder }}"
    assert upload["if"].startswith("always()")
    for part in ("inputs.artifact-name ||", "github.job", "strategy.job-index", "steps.gate.outputs.use"):
        assert part in upload["with"]["name"]


def test_inputs_reach_the_command_whole_and_become_no_code(rehearsal: Rehearsal):
    hostile = '$(touch stolen) "; touch stolen; #'
    rehearsal.use(0, experiment="my gate.toml", baseline=hostile, candidate=hostile, options="--band 5% *")
    assert rehearsal.words[:6] == ["gate", "my gate.toml", "--baseline", hostile, "--candidate", hostile]
    assert rehearsal.words[-3:] == ["--band", "5%", "*"]
    assert not (rehearsal.folder / "stolen").exists()
    assert [step["name"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_the_command_exists(rehearsal: Rehearsal):
    rehearsal.use(0, experiment="gate.toml", options="--band 5%")
    make_app().parse_args(rehearsal.words, exit_on_error=False, print_error=False)
    rehearsal.use(0, baseline="runs/a@x")
    assert rehearsal.words[:2] == ["gate", "--baseline"]
    make_app().parse_args(rehearsal.words, exit_on_error=False, print_error=False)


def test_bakeoff_is_installed_by_the_python_of_the_input_and_the_jobs_own_stays():
    python, install = STEPS[:2]
    assert python["with"] == {"python-version": "${{ inputs.python-version }}", "update-environment": False}
    assert ACTION["inputs"]["python-version"]["default"] == "3.12"
    assert install["env"] == {
        "PYTHON": f"${{{{ steps.{python['id']}.outputs.python-path }}}}",
        "EXTRAS": "${{ inputs.extras }}",
    }
    commands = [shlex.split(line) for line in install["run"].splitlines()]
    assert [command[0] for command in commands] == ["$PYTHON", "$RUNNER_TEMP/bakeoff/bin/pip"]
    for extras, place in (("engine,hf", "/action[engine,hf]"), ("", "/action")):
        env = {"GITHUB_ACTION_PATH": "/action", "EXTRAS": extras}
        argv = ["bash", "-c", f'echo "{commands[1][-1]}"']
        assert subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout == f"{place}\n"
