"""docs/workloads.md matches the code: its tables follow from the code, and its example runs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.workloads import Seed, Tokenizer, prompt_reader, registry, workload
from tests.workloads.small_tokenizers import checkpoint

DOCUMENT = Path(__file__).parents[3] / "docs" / "workloads.md"


@pytest.fixture
def help_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's own example, installed as a package would be."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (named,) = re.findall(r'\[project.entry-points."(.*?)"\]\nhelp-desk = "(.*?)"', text)
    (tmp_path / f"{named[1].partition(':')[0]}.py").write_text(example, encoding="utf-8")
    (tmp_path / "help_desk-1.dist-info").mkdir()
    (tmp_path / "help_desk-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: help-desk\nVersion: 1\n")
    (tmp_path / "help_desk-1.dist-info" / "entry_points.txt").write_text(f"[{named[0]}]\nhelp-desk = {named[1]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._others.cache_clear()
    yield
    registry._others.cache_clear()


@pytest.mark.usefixtures("help_desk")
def test_a_workload_of_another_package_is_drawn_as_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path / "tokenizer")
    command = ["workloads", "show", "help-desk", "--option", "topics=5", "--sessions", "40", "--tokenizer", str(folder)]
    assert guarded(make_app(), ["workloads", "list"]) == 0
    assert "help_desk:HelpDesk" in capsys.readouterr().out
    assert guarded(make_app(), [*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["notes"] == ["help-desk: made-up questions, two a second"]
    assert shown["options"] == {"topics": 5}
    assert sum(shown["arrivals"]["counts"]) == 40
    assert shown["figures"]["rate_per_s"] == pytest.approx(2, rel=0.5)
    assert shown["figures"]["input_min"] > 5


@pytest.mark.usefixtures("help_desk")
def test_the_examples_lengths_are_those_that_an_engine_counts(tmp_path: Path) -> None:
    tokenizer = Tokenizer(checkpoint(tmp_path / "tokenizer"))
    session = next(iter(workload("help-desk", {}).sessions(tokenizer, Seed.of("1"))))
    assert session.turns[0].input_tokens == prompt_reader(tokenizer).count(session.turns[0])
