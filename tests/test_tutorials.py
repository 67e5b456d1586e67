"""The tutorials' files are experiments, and what is compared can fail; make nightly runs the commands."""

from pathlib import Path

import pytest

from bakeoff.harness.experiment.reading import load_experiment
from tests.acceptance.docs.tutorials import TUTORIALS, missing, read


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_file_is_an_experiment(page: Path, tmp_path: Path):
    tutorial = read(page)
    assert len(tutorial.steps) >= 3
    for name, text in tutorial.files.items():
        (tmp_path / name).write_text(text)
        assert load_experiment(tmp_path / name).name == Path(name).stem


def test_what_a_page_shows_must_be_printed_in_its_order():
    printed = "a: COMPLETE, 6 of 6 valid\nAt c=4, a delivered 3.32× [3.04, 3.63]\n"
    assert missing(["a: COMPLETE, 5 of 5 valid", "At c=4, … delivered …×"], printed) is None
    assert missing(["At c=4, …", "a: COMPLETE, 6 of 6 valid"], printed) == "a: COMPLETE, 6 of 6 valid"
    assert missing(["INVALID"], printed) == "INVALID"
