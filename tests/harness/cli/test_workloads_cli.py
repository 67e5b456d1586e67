"""``bakeoff workloads``: list, show and sample, as a user runs them."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.traffic.profile.catalogue import REPLAYS
from bakeoff.workloads import Seed, Tokenizer, plan_recorded, prompt_reader, workload, workload_names
from bakeoff.workloads.presets import preset_names
from bakeoff.workloads.traces.formats import TRACE_FORMATS
from tests.workloads.small_tokenizers import checkpoint

ROOT = Path(__file__).parents[3]
BAKEOFF = Path(sys.executable).with_name("bakeoff")
PRESET = """
summary = "pings"
source = "nobody"
arrival = { process = "poisson", rate_per_s = 2.0 }
input = { family = "fixed", value = 40 }
output = { family = "fixed", value = 5 }
anchors = [{ metric = "input_p50", low = 40, high = 40, source = "the file" }]
"""


def run(*arguments: object) -> int:
    return guarded(make_app(), ["workloads", *map(str, arguments)])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten minutes of a request each second, with a minute's silence."""
    seconds = [second for second in range(600) if not 200 <= second < 260]
    rows = [f"2024-05-10 00:{second // 60:02d}:{second % 60:02d},{100 + second},{10}" for second in seconds]
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no model was pulled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))


class TestList:
    def test_names_everything_that_there_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("list") == 0
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= 100
        for name in (*workload_names(), *TRACE_FORMATS):
            assert re.search(rf"^{re.escape(name)} ", printed, re.MULTILINE), name
        assert re.search(r"^chat .* 8 anchors", printed, re.MULTILINE)

    def test_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("list", "--json") == 0
        listing = json.loads(capsys.readouterr().out)
        assert [preset["name"] for preset in listing["presets"]] == list(preset_names())
        assert {replay["name"] for replay in listing["replays"]} == set(REPLAYS)
        assert listing["trace_formats"] == TRACE_FORMATS

    def test_every_workload_that_is_no_preset_is_described(self) -> None:
        assert {*preset_names(), *REPLAYS} <= set(workload_names())
        for name, (_, kind) in REPLAYS.items():
            assert "path" in kind.__struct_fields__ or name in {"random", "embeddings", "rerank"}


class TestShow:
    def test_a_preset_meets_its_anchors_on_the_screen(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("show", "offline-batch") == 0
        printed = capsys.readouterr().out
        assert "All sessions at once; prompts p50" in printed
        assert "– all sessions are waiting when the load begins" in printed
        assert "3 of 3 met" in printed

    def test_a_preset_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("show", "rag", "-n", "300", "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["sessions"] == shown["requests"] == 300
        assert sum(bar["count"] for bar in shown["input_tokens"]["bins"]) == 300
        assert sum(shown["arrivals"]["counts"]) == 200_000
        assert sum(shown["opening"]["counts"]) == 300
        assert len(shown["prefix_cache"]["points"]) == 12
        assert {anchor["metric"]: anchor["met"] for anchor in shown["anchors"]}["input_p50"] is True
        assert shown["anchors"][0]["value"] == shown["figures"]["input_p50"]

    def test_a_seed_fixes_every_figure(self, capsys: pytest.CaptureFixture[str]) -> None:
        figures: list[object] = []
        for seed in (3, 3, 4):
            assert run("show", "multi-turn", "-n", "50", "--seed", seed, "--json") == 0
            figures.append(json.loads(capsys.readouterr().out)["figures"])
        assert figures[0] == figures[1] != figures[2]

    def test_the_path_of_a_trace(self, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("show", trace, "--json") == 0
        by_path = json.loads(capsys.readouterr().out)
        assert by_path["name"] == "trace.csv"
        assert by_path["figures"]["longest_gap_s"] == 61
        assert by_path["figures"]["input_max"] == 699
        assert by_path["sessions"] == 540
        assert run("show", "trace", "--option", f"path={trace}", "--json") == 0
        assert json.loads(capsys.readouterr().out)["figures"] == by_path["figures"]

    def test_options_and_the_command_that_draws_it_again(
        self, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        page = tmp_path / "page.html"
        assert run("show", trace, "--option", "scale=0.5", "--option", "max_rows=30", "--html", page) == 0
        assert f"page: {page}" in capsys.readouterr().out
        wanted = f"workloads show {trace} --option scale=0.5 --option max_rows=30 --seed 1 --sessions 20000"
        assert wanted in page.read_text(encoding="utf-8")

    def test_the_path_of_a_preset(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "pings.toml"
        path.write_text(PRESET, encoding="utf-8")
        assert run("show", path, "-n", "50") == 0
        assert "1 of 1 met" in capsys.readouterr().out
        assert run("show", path, "-n", "50", "--option", "scale=0.5") == 0
        assert "not checked" in capsys.readouterr().out

    def test_what_must_be_written_takes_a_tokenizer(
        self, tokenizer: Path, no_model: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("show", "random", "-n", "20", "--tokenizer", tokenizer, "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["figures"]["input_p50"] == 128
        assert shown["tokenizer"] == str(tokenizer)
        assert run("show", "random", "-n", "20") == 2
        assert "bakeoff models pull" in capsys.readouterr().err

    def test_the_pulled_model_counts_by_default(
        self, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("bakeoff.harness.traffic.profile.selection.cached", lambda name: tokenizer)
        assert run("show", "random", "-n", "20", "--json") == 0
        assert json.loads(capsys.readouterr().out)["tokenizer"] == str(tokenizer)
        assert run("show", "chat", "-n", "20", "--json") == 0
        assert json.loads(capsys.readouterr().out)["tokenizer"] is None


class TestSample:
    @pytest.mark.parametrize("file", ["sample.jsonl", "sample.jsonl.gz"])
    @pytest.mark.parametrize("name", ["multi-turn", "structured-output", "random", "offline-batch"])
    def test_what_is_written_is_sent_as_it_is(
        self, name: str, file: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / file
        options = () if name == "random" else ("--option", "scale=0.1")
        assert run("sample", name, "-n", 12, "--tokenizer", tokenizer, "--seed", 5, "--out", path, *options) == 0
        assert capsys.readouterr().out.startswith(f"{path}: 12 sessions, ")
        loaded, seed = Tokenizer(tokenizer), Seed.of("5")
        made = workload(name, {} if name == "random" else {"scale": 0.1}).sessions(loaded, seed)
        read = list(workload("sessions", {"path": str(path)}).sessions(loaded, Seed.of("another")))
        assert read == [session for session, _ in zip(made, range(12), strict=False)]
        assert all(
            turn.input_tokens == prompt_reader(loaded).count(turn) for session in read[:3] for turn in session.turns
        )

    def test_times_are_kept_and_can_be_replayed(self, trace: Path, tokenizer: Path, tmp_path: Path) -> None:
        path = tmp_path / "sample.jsonl"
        assert run("sample", trace, "-n", 30, "--tokenizer", tokenizer, "--out", path) == 0
        written = workload("sessions", {"path": str(path)})
        planned = plan_recorded(written, Tokenizer(tokenizer), Seed.of("1"), duration_s=20, count=99)
        assert [session.offset_s for session in planned] == [float(second) for second in range(20)]

    def test_a_written_sample_can_be_shown(
        self, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "sample.jsonl.gz"
        assert run("sample", "multi-turn", "-n", 15, "--tokenizer", tokenizer, "--out", path) == 0
        capsys.readouterr()
        assert run("show", path, "--tokenizer", tokenizer, "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["sessions"] == 15
        assert shown["options"] == {"path": str(path)}
        assert sum(shown["opening"]["counts"]) == 15

    def test_stdout_and_file_hold_the_same_and_packing_is_repeatable(self, tokenizer: Path, tmp_path: Path) -> None:
        words = [BAKEOFF, "workloads", "sample", "chat", "-n", "3", "--tokenizer", tokenizer]
        printed = subprocess.run(words, capture_output=True, check=True).stdout
        assert [json.loads(line)["id"] for line in printed.splitlines()] == ["chat-0", "chat-1", "chat-2"]
        for name in ("a.gz", "b.gz"):
            assert run(*words[2:], "--out", tmp_path / name) == 0
        assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
        assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == printed

    def test_a_reader_that_has_enough_is_no_error(self, tokenizer: Path) -> None:
        words = [BAKEOFF, "workloads", "sample", "chat", "-n", "100000", "--tokenizer", tokenizer]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b'{"id":"chat-0"')
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0

    def test_an_error_half_way_leaves_what_was_there(
        self, trace: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "sample.jsonl"
        path.write_text("as before\n", encoding="utf-8")
        lines = trace.read_text(encoding="utf-8").splitlines()
        lines[400] = "yesterday,100,10"
        trace.write_text("\n".join(lines), encoding="utf-8")
        assert run("sample", trace, "-n", 500, "--tokenizer", tokenizer, "--out", path) == 2
        assert "row 401" in capsys.readouterr().err
        assert path.read_text(encoding="utf-8") == "as before\n"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["sample.jsonl", "trace.csv"]

    def test_no_session_is_an_error(
        self, trace: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ("--option", "max_input_tokens=5", "--tokenizer", tokenizer, "--out", tmp_path / "x.jsonl")
        assert run("sample", trace, *words) == 2
        assert "no session" in capsys.readouterr().err
        assert not (tmp_path / "x.jsonl").exists()


MISTAKES = [
    (("show", "chta"), "did you mean 'chat'?"),
    (("show", "x" * 300), "unknown workload"),
    (("show", "missing.jsonl"), "missing.jsonl does not exist"),
    (("show", "./missing"), "./missing does not exist"),
    (("show", "trace", "--option", "path=missing.csv"), "missing.csv: does not exist"),
    (("show", "trace"), "path"),
    (("show", str(ROOT / "README.md")), "is not in a known trace format"),
    (("show", str(ROOT / "pyproject.toml")), "pyproject.toml has no option"),
    (("show", str(ROOT / "README.md"), "--option", "path=other"), "is already a path"),
    (("show", "chat", "--option", "scal=2"), "did you mean 'scale'?"),
    (("show", "chat", "--option", "scale"), "needs key=value"),
    (("show", "chat", "--option", "scale=0"), "scale must be above 0"),
    (("show", "chat", "--option", "scale=a"), "scale"),
    (("show", "chat", "-n", "0"), "-n"),
    (("show", "offline-batch", "-n", "9", "--html", "/missing/page.html"), "cannot write /missing/page.html"),
    (("show", "chat", "--tokenizer", "/missing"), "/missing has no tokenizer.json"),
    (("sample", "chat", "--tokenizer", "/missing"), "/missing has no tokenizer.json"),
    (("sample", "chta", "--tokenizer", "/missing"), "did you mean 'chat'?"),
    (("sample", "chat", "--tokenizer", "TOKENIZER", "--out", "/missing/x.gz"), "cannot write /missing/x.gz"),
    (("sample", "chat", "--tokenizer", "TOKENIZER", "-n", "-3"), "-n"),
    (("sample",), "see bakeoff"),
    (("samle",), "see bakeoff"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), MISTAKES, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_every_mistake_is_one_line(
    arguments: tuple[str, ...], words: str, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = 3 if words.startswith("cannot write") else 2
    assert run(*(str(tokenizer) if argument == "TOKENIZER" else argument for argument in arguments)) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_a_broken_tokenizer_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    assert run("sample", "chat", "--tokenizer", tmp_path) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "tokenizer.json is not a tokenizer" in printed


def test_without_a_model_sample_says_what_to_give(no_model: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample", "chat") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--tokenizer" in printed.err
    assert "bakeoff models pull smollm2-135m-instruct" in printed.err


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from bakeoff.harness.cli import make_app\n"
        "make_app()(['workloads', 'show', '--help'], result_action='return_value')\n"
        "heavy = ('numpy', 'tokenizers', 'bakeoff.workloads', 'bakeoff.results')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
