"""docs/workloads.md matches the code: its tables follow from the code, and its example runs."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.traffic.profile.figures import anchor_texts
from bakeoff.workloads import ARRIVALS, Seed, Tokenizer, arrival, prompt_reader, registry, workload
from bakeoff.workloads.presets import built_in, preset_names
from bakeoff.workloads.traces.formats import TRACE_FORMATS, trace_format
from tests.workloads.small_tokenizers import checkpoint

DOCUMENT = Path(__file__).parents[3] / "docs" / "workloads.md"
BLOCK = re.compile(r"<!-- (\w+): generated [^\n]* -->\n(.*?)<!-- end -->", re.DOTALL)


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, *rows]
    drawn = [f"| {' | '.join(cells)} |\n" for cells in lines]
    return "".join([drawn[0], f"|{'---|' * len(head)}\n", *drawn[1:]])


def presets() -> Iterator[Sequence[str]]:
    for name in preset_names():
        preset = built_in(name)
        natural = preset.arrival
        rate = "" if natural.process == "at-once" else f", {natural.rate_per_s:g} /s"
        yield f"`{name}`", preset.summary, f"`{natural.process}`{rate}", preset.source


def anchors() -> Iterator[Sequence[str]]:
    for name in preset_names():
        for number, anchor in enumerate(built_in(name).anchors):
            shown = f"`{name}`" if number == 0 else ""
            yield shown, f"`{anchor.metric}`", anchor_texts(anchor, None)[1], anchor.source


def options(made: object, left_out: str) -> str:
    assert isinstance(made, msgspec.Struct)
    fields = [field for field in msgspec.structs.fields(type(made)) if field.name != left_out]
    return ", ".join(f"`{field.name}`{default(field.default)}" for field in fields) or "none"


def default(value: object) -> str:
    if isinstance(value, bool) or value is None or value is msgspec.NODEFAULT or value == ():
        return ""
    if isinstance(value, int | float):
        return f" ({value:g})"
    return f" ({value})" if isinstance(value, str) else ""


def formats() -> Iterator[Sequence[str]]:
    for name, words in TRACE_FORMATS.items():
        yield f"`{name}`", words, options(trace_format(name, {"path": "x", **NEEDED.get(name, {})}), "path")


NEEDED = {"csv": {"columns": {"input_tokens": "a", "output_tokens": "b"}}}


def arrivals() -> Iterator[Sequence[str]]:
    for name in ARRIVALS:
        made = arrival(name, 1.0, {})
        words = (type(made).__doc__ or "").partition("\n")[0].removesuffix(".")
        yield f"`{name}`", words, options(made, "rate_per_s")


TABLES = {
    "presets": lambda: table(("name", "what it is", "arrivals", "source"), presets()),
    "anchors": lambda: table(("preset", "figure", "wanted", "source"), anchors()),
    "formats": lambda: table(("format", "what it is", "format_options"), formats()),
    "arrivals": lambda: table(("name", "what it is", "arrival_options"), arrivals()),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_the_codes(name: str) -> None:
    blocks = dict(BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")))
    wanted = TABLES[name]()
    assert blocks[name] == wanted, f"put this between the comments of docs/workloads.md:\n{wanted}"


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
