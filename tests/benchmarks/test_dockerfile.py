"""The Dockerfile copies what exists, ends in the core, and starts Bakeoff as an ordinary user."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.dockerfile import Stage, Step, read_stages

ROOT = Path(__file__).parents[2]
STAGES = read_stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
BY_NAME = {stage.name: stage for stage in STAGES}


def steps_below(stage: Stage) -> Iterator[Step]:
    """The steps of a stage and of the stages that it is based upon, in their order."""
    if stage.base in BY_NAME:
        yield from steps_below(BY_NAME[stage.base])
    yield from stage.steps


def last(stage: Stage, keyword: str) -> str:
    return [step.text for step in steps_below(stage) if step.keyword == keyword][-1]


def built(stage: Stage) -> str:
    """What makes the environment that a target copies."""
    copied = [name for step in stage.steps if (name := step.option("from"))]
    assert len(copied) == 1
    return "\n".join(step.text for step in steps_below(BY_NAME[copied[0]]) if step.keyword == "RUN")


def test_a_dockerfile_is_read_as_docker_reads_it():
    text = "# first\nARG V=3\nFROM a:${V} AS one\nRUN x && \\\n  # why\n  y\n\nFROM one\ncopy --from=one a 'b c' /d\n"
    first, second = read_stages(text)
    assert first == Stage("a:3", "one", [Step("RUN", "x && y")])
    (copy,) = second.steps
    assert (second.base, second.name, copy.keyword) == ("one", "", "COPY")
    assert (copy.words, copy.option("from"), copy.option("chown")) == (["a", "b c", "/d"], "one", None)


def test_what_is_copied_exists_and_is_not_ignored():
    steps = [step for stage in STAGES for step in stage.steps if step.keyword == "COPY" and not step.option("from")]
    sources = {source for step in steps for source in step.words[:-1]}
    assert {source for source in sources if not (ROOT / source).exists()} == set()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == sources
    links = {link.resolve().name for link in (ROOT / "src/bakeoff").iterdir() if link.is_symlink()}
    assert links < sources


def test_images_have_a_version_and_stages_come_before_their_use():
    known: set[str] = set()
    for stage in STAGES:
        assert stage.base in known or re.fullmatch(r"python:3\.\d+-slim", stage.base), stage.base
        assert {name for step in stage.steps if (name := step.option("from"))} <= known
        known.add(stage.name)


def test_the_core_is_the_default_and_has_no_engine():
    assert STAGES[-1].name == "core"
    assert "[engine]" not in built(BY_NAME["core"])
    assert "[engine]" in built(BY_NAME["engine"])


@pytest.mark.parametrize("target", ["core", "engine"])
def test_it_starts_bakeoff_as_an_ordinary_user_in_a_folder_of_that_user(target: str):
    stage = BY_NAME[target]
    user = last(stage, "USER")
    assert user.isdigit()
    assert int(user) > 0
    assert last(stage, "ENTRYPOINT") == '["bakeoff"]'
    assert last(stage, "WORKDIR") == "/runs"
    commands = [step.text for step in steps_below(stage) if step.keyword == "RUN"]
    assert f"useradd --uid {user} " in commands[0]
    assert "--owner bakeoff /runs" in commands[0]
    assert "/opt/bakeoff/bin:" in last(stage, "ENV")
