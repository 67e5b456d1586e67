"""``bakeoff workloads fit``: what it prints and writes, and its messages about traces that cannot be fitted."""

import json
from itertools import islice
from pathlib import Path

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.workloads import Seed, Tokenizer, workload
from bakeoff.workloads.arrivals import Gamma
from bakeoff.workloads.presets.preset import read_preset
from bakeoff.workloads.rng import Rng
from tests.workloads.small_tokenizers import checkpoint


def bakeoff(*arguments: object) -> int:
    return guarded(make_app(), [str(argument) for argument in arguments])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """600 requests of Gamma gaps, half of them short."""
    rng, file = Rng("command"), tmp_path / "mine.csv"
    starts = islice(Gamma(5.0, 0.5).offsets_s("3"), 600)
    rows = (f"{at_s:.6f},{rng.choice((40, 900)) + rng.below(50)},{20 + rng.below(100)}" for at_s in starts)
    file.write_text("\n".join(["at_s,input_tokens,output_tokens", *rows]), encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of its own."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_trace_becomes_a_preset(trace: Path, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert bakeoff("workloads", "fit", trace) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for words in ("600 requests", "Gamma gaps", "input_mean", "dispersion_10s", "good fit"):
        assert words in printed.out
    assert max(map(len, printed.out.splitlines())) <= 100
    preset = read_preset(here / "mine.toml")
    assert preset.arrival.rate_per_s == pytest.approx(5.0, rel=0.15)
    assert preset.input.share_up_to(500) == pytest.approx(0.5, abs=0.05)
    assert {anchor.metric for anchor in preset.anchors} >= {"rate_per_s", "input_mean"}
    made = workload("preset", {"path": "mine.toml"})
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    session = next(iter(made.sessions(Tokenizer(checkpoint(folder)), Seed.of("1"))))
    assert session.turns[0].input_tokens >= 40
    assert [file.name for file in here.iterdir()] == ["mine.toml"]


def test_the_same_as_json(trace: Path, here: Path, capsys: pytest.CaptureFixture[str]):
    out = here / "named.toml"
    assert bakeoff("workloads", "fit", trace, "--json", "--out", out, "--name", "mine", "--option", "max_rows=300") == 0
    fit = json.loads(capsys.readouterr().out)
    assert fit["path"] == str(out)
    assert (fit["requests"], fit["sessions"]) == (300, 300)
    figures = {figure["name"]: figure for figure in fit["figures"]}
    assert figures["input_mean"]["tolerance"] == 0.18
    assert 0.26 < figures["gap_cv"]["tolerance"] < 0.4
    assert figures["gap_cv"]["difference"] == pytest.approx(
        figures["gap_cv"]["preset"] / figures["gap_cv"]["trace"] - 1
    )
    assert fit["poor"] == []
    assert read_preset(out).summary == "traffic like mine"
    assert str(trace.parent) not in out.read_text(encoding="utf-8")


def test_a_poor_fit_is_reported_and_is_no_failure(tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str]):
    """Answers of one token: a preset draws none shorter than two."""
    file = tmp_path / "labels.csv"
    rows = [f"{number * 0.7 + number % 3 * 0.2:.3f},{100 + number % 90},1" for number in range(200)]
    file.write_text("\n".join(["when,prompt,answer", *rows]), encoding="utf-8")
    columns = 'format_options={columns={at_s = "when", input_tokens = "prompt", output_tokens = "answer"}}'
    assert bakeoff("workloads", "fit", file, "--option", "format=csv", "--option", columns) == 0
    printed = capsys.readouterr().out
    assert "output_mean, output_p90, input_per_output differ" in printed
    assert "output_mean, output_p90, input_per_output differ" in (here / "labels.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("at_s,input_tokens,output_tokens\n" + "0,1,1\n" * 49, (), "has 49 requests; a fit needs at least 50"),
        ('{"prompt": "why?"}\n' * 60, ("--option", "format=questions", "--tokenizer", "none"), "has no tokenizer.json"),
        ("what is this", (), "is not in a known trace format"),
        (None, (), "does not exist"),
        (None, ("--out", "no/such/folder.toml"), "no/such/folder.toml cannot be written"),
        (None, ("--out", "preset.json"), "ends in .toml"),
        ("x", ("--option", "format=azur"), "format must be one of"),
        (None, ("--option", "block_tokens"), "needs key=value"),
        ("x", ("--option", "max_rows=0"), "max_rows must be at least 1"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    arguments: tuple[str, ...],
    words: str,
):
    file = tmp_path / "mine.txt"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    assert bakeoff("workloads", "fit", file, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err
    assert list(here.iterdir()) == []


def test_no_file_is_overwritten_that_was_not_named(trace: Path, here: Path, capsys: pytest.CaptureFixture[str]):
    existing = here / "mine.toml"
    existing.write_text("mine", encoding="utf-8")
    assert bakeoff("workloads", "fit", trace) == 2
    assert "mine.toml exists already" in capsys.readouterr().err
    assert existing.read_text(encoding="utf-8") == "mine"
    assert bakeoff("workloads", "fit", trace, "--out", existing) == 0
    assert read_preset(existing).summary == "traffic like mine"


def test_the_trace_itself_is_never_overwritten(trace: Path, capsys: pytest.CaptureFixture[str]):
    disguised = trace.rename(trace.with_suffix(".toml"))
    before = disguised.read_bytes()
    assert bakeoff("workloads", "fit", disguised, "--option", "format=csv", "--out", disguised) == 2
    assert "is the trace" in capsys.readouterr().err
    assert disguised.read_bytes() == before


def test_a_fit_that_fails_leaves_the_old_file_whole(trace: Path, here: Path, capsys: pytest.CaptureFixture[str]):
    existing = here / "kept.toml"
    existing.write_text("mine", encoding="utf-8")
    with trace.open("a", encoding="utf-8") as file:
        file.write("\n1e5,broken,7\n")
    assert bakeoff("workloads", "fit", trace, "--out", existing) == 2
    assert "row 602" in capsys.readouterr().err
    assert existing.read_text(encoding="utf-8") == "mine"
