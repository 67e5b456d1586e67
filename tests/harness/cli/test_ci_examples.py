"""The pipelines of docs/ci and our own workflows: valid, of commands that exist, with experiments that exist."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bakeoff.engines.models.store import KNOWN_MODELS
from bakeoff.harness.cli import make_app
from bakeoff.harness.conduct.policies.gate import gate_experiment
from bakeoff.harness.experiment.reading import load_experiment

ROOT = Path(__file__).parents[3]
CI = ROOT / "docs/ci"
PULL_REQUEST, NIGHTLY, STORED = CI / "pull-request.yml", CI / "nightly-gpu.yml", CI / "stored-baseline.yml"
GITLAB, JENKINS = CI / "gitlab-ci.yml", CI / "Jenkinsfile"
EXAMPLES = [PULL_REQUEST, NIGHTLY, STORED, GITLAB, JENKINS]
WORKFLOWS = [PULL_REQUEST, NIGHTLY, STORED, *sorted((ROOT / ".github/workflows").glob("*.yml"))]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
_OWN_ACTION = re.compile(r"[\w-]+/bakeoff@v0\.1\.0")


def name_of(path: Path) -> str:
    return path.stem


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def commands(pipeline: Path) -> list[list[str]]:
    """The words after ``bakeoff`` of each line that runs it, or that the action runs for it."""
    command_lines = re.findall(r"bin/bakeoff (.*)$", pipeline.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(re.split(r" \|\|? ", line)[0]) for line in command_lines]


def own_action() -> dict[str, str]:
    (step,) = (step for step in steps(PULL_REQUEST) if _OWN_ACTION.fullmatch(step.get("uses", "")))
    return step["with"]


def scripts(pipeline: Path) -> Iterator[str]:
    """What shells run."""
    if pipeline == JENKINS:
        yield from re.findall(r"'''\n(.*?)'''", pipeline.read_text(encoding="utf-8"), re.DOTALL)
    elif pipeline == GITLAB:
        job = yaml.safe_load(pipeline.read_text(encoding="utf-8"))["gate"]
        yield from ("\n".join(job[part]) for part in ("script", "after_script"))
    else:
        yield from (step["run"] for step in steps(pipeline) if "run" in step)


def schema(path: Path, *options: str) -> None:
    argv = [sys.executable, "-m", "check_jsonschema", *options, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name_of)
def test_github_takes_it(workflow: Path) -> None:
    schema(workflow, "--builtin-schema", "vendor.github-workflows")


def test_gitlab_takes_it() -> None:
    schema(GITLAB, "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")


def test_jenkins_closes_what_it_opens() -> None:
    """There is no schema of a Jenkinsfile."""
    text = re.sub(r"(?s)'''.*?'''", "", JENKINS.read_text(encoding="utf-8"))
    text = re.sub(r"//.*|'[^'\n]*'|\"[^\"\n]*\"", "", text)
    opened: list[str] = []
    for sign in re.findall(r"[{}()]", text):
        if sign in "{(":
            opened.append(sign)
        else:
            assert opened.pop() == {"}": "{", ")": "("}[sign]
    assert opened == []
    assert "stages" in text


@pytest.mark.parametrize("pipeline", [*EXAMPLES, *WORKFLOWS[3:]], ids=name_of)
def test_its_scripts_are_valid_shell(pipeline: Path) -> None:
    found = list(scripts(pipeline))
    assert found
    for script in found:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("pipeline", [NIGHTLY, STORED, GITLAB, JENKINS], ids=name_of)
def test_its_commands_exist(pipeline: Path) -> None:
    app = make_app()
    assert commands(pipeline)
    for words in commands(pipeline):
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_action_has_the_inputs_that_the_pull_request_gives() -> None:
    given = own_action()
    required = {name for name, entry in ACTION["inputs"].items() if entry.get("required")}
    assert required <= set(given) <= set(ACTION["inputs"])


@pytest.mark.parametrize("pipeline", [PULL_REQUEST, GITLAB, JENKINS], ids=name_of)
def test_the_gate_names_engines_of_its_experiment(pipeline: Path) -> None:
    if pipeline == PULL_REQUEST:
        given = own_action()
        experiment, a, b = (given[name] for name in ("experiment", "baseline", "candidate"))
    else:
        (words,) = commands(pipeline)
        experiment, a, b = words[1], *(words[words.index(option) + 1] for option in ("--baseline", "--candidate"))
    made, *labels = gate_experiment(load_experiment(CI / experiment), a, b)
    assert labels == [a, b]
    assert made.repeats == 8


@pytest.mark.parametrize("pipeline", [PULL_REQUEST, GITLAB, JENKINS], ids=name_of)
def test_both_sides_are_where_the_experiment_looks_for_them(pipeline: Path) -> None:
    programs = {str(engine.program) for engine in load_experiment(CI / "gate.toml").engines}
    assert {str(Path(program).parents[2]) for program in programs} == {"base", "."}
    assert any("for side in base .; do" in script for script in scripts(pipeline))


@pytest.mark.parametrize("pipeline", EXAMPLES, ids=name_of)
def test_pip_gets_paths_and_the_repository(pipeline: Path) -> None:
    """It would look for a bare name on the package index, where it is a stranger's."""
    lines = [line for script in scripts(pipeline) for line in re.findall(r'/pip"? install (.*)', script)]
    places = [word for line in lines for word in shlex.split(line)]
    assert places
    assert [place for place in places if not re.match(r"\.(/|$)|\S+ @ git\+https://", place)] == []


def test_what_prepares_the_known_model_is_installed() -> None:
    assert {load_experiment(CI / f"{name}.toml").model.name for name in ("gate", "nightly")} <= set(KNOWN_MODELS)
    assert ACTION["inputs"]["extras"]["default"] == "engine"
    for pipeline in (NIGHTLY, GITLAB, JENKINS):
        assert '"bakeoff[engine] @ ' in pipeline.read_text(encoding="utf-8")


def test_the_history_is_of_the_runs_that_the_night_measures() -> None:
    run, history = commands(NIGHTLY)
    experiment = load_experiment(CI / run[1])
    assert history[history.index("--name") + 1] == experiment.name
    (engine,) = experiment.engines
    assert f"venv {Path(str(engine.program)).parents[1]} " in "\n".join(scripts(NIGHTLY))


@pytest.mark.parametrize("pipeline", EXAMPLES, ids=name_of)
def test_no_run_folder_becomes_an_artifact(pipeline: Path) -> None:
    """Anyone can download artifacts of a public repository, and a run holds whole answers and the engines' logs."""
    text = pipeline.read_text(encoding="utf-8")
    if pipeline == GITLAB:
        kept = yaml.safe_load(text)["gate"]["artifacts"]
        assert [*kept["paths"], kept["reports"]["junit"]] == ["gate.md", "gate.xml"]
    elif pipeline == JENKINS:
        assert re.findall(r"(?:archiveArtifacts artifacts|testResults): '(.*?)'", text) == ["gate.md", "gate.xml"]
    else:
        assert "upload-artifact" not in text


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name_of)
def test_no_expression_stands_in_a_script(workflow: Path) -> None:
    """GitHub expands expressions before the shell reads the script, so that a stranger's text would run."""
    found = list(scripts(workflow))
    assert found
    assert not [script for script in found if "${{" in script]
