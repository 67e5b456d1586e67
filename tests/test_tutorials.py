"""The tutorials' commands and files are those that Bakeoff has; make nightly runs them."""

import re
import shlex
from pathlib import Path

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.experiment.config import load_experiment
from tests.acceptance.docs.tutorials import TUTORIALS, missing, read


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_and_file_is_understood(page: Path, tmp_path: Path):
    tutorial = read(page)
    for name, text in tutorial.files.items():
        (tmp_path / name).write_text(text)
        load_experiment(tmp_path / name)
    commands = [step.command for step in tutorial.steps if step.command.startswith("bakeoff ")]
    assert len(commands) >= 3
    for command in commands:
        line = re.sub(r"\$\([^)]*\)", "RUN", command).partition("||")[0].partition(">")[0]
        words = shlex.split(line.rstrip("& "))
        assert make_app().parse_args(words[1:], exit_on_error=False, print_error=False)[0] is not None, command


def test_what_a_page_shows_must_be_printed_in_its_order():
    printed = "a: COMPLETE, 6 of 6 valid\nAt c=4, a delivered 3.32× [3.04, 3.63]\n"
    assert missing(["a: COMPLETE, 5 of 5 valid", "At c=4, … delivered …×"], printed) is None
    assert missing(["At c=4, …", "a: COMPLETE, 6 of 6 valid"], printed) == "a: COMPLETE, 6 of 6 valid"
    assert missing(["INVALID"], printed) == "INVALID"
