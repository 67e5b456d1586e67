import errno
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import cyclopts
import pytest

import bakeoff as api
from bakeoff import results
from bakeoff.engines import Model, models, pick_port
from bakeoff.engines.errors import NotIdentified
from bakeoff.engines.request_shape import RequestShape
from bakeoff.harness import version
from bakeoff.harness.cli import commands_of, examples_of, known_models, make_app
from bakeoff.harness.cli.commands import bench
from bakeoff.harness.cli.guarded import RENAMED, guarded
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.experiment.config import Experiment, TrialConfig
from bakeoff.harness.host import environment
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld
from bakeoff.results.errors import NotWritable, RunUnreadable
from bakeoff.results.schema import SCHEMA_VERSION
from tests.results.builders import Sheet, build_run
from tests.workloads.small_tokenizers import checkpoint

ROOT = Path(__file__).parents[3]
TEXTS = ("README.md", "CONTRIBUTING.md", "docs", "engines", "harness", "reference_engine", "results", "workloads")
PROSE = {"also", "fills", "from", "is", "loads", "measured", "must", "reads"}
"""Words behind the name of the program that are no command."""
BAKEOFF = Path(sys.executable).with_name("bakeoff")


def bakeoff(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BAKEOFF, *map(str, arguments)], capture_output=True, text=True, check=False)


def in_process(*arguments: str) -> int:
    return guarded(make_app(), arguments)


def bars_of(module: str, *arguments: str) -> dict[str, dict[str, object]]:
    """Run an acceptance program, and return its last line."""
    argv = [sys.executable, "-m", f"tests.acceptance.{module}", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_help_names_every_command_and_imports_nothing_heavy():
    done = bakeoff("--help")
    for command in ("demo", "run", "bench", "report", "compare", "gate", "search", "serve", "lab"):
        assert command in done.stdout
    for group in ("engines", "models", "workloads"):
        assert group in done.stdout
    heavy = "('pandas', 'torch', 'numpy', 'aiohttp')"
    code = f"import sys, bakeoff.harness.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_version_is_that_of_the_checkout_else_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    monkeypatch.setattr(environment, "git_commit", lambda: "123456789abc+")
    assert in_process("--version") == 0
    said = f"{hatch['version']['fallback-version']} (schema {SCHEMA_VERSION} of runs, commit 123456789abc+)\n"
    assert capsys.readouterr().out == said
    monkeypatch.setattr(version, "__file__", str(tmp_path / "site-packages/bakeoff/harness/version.py"))
    assert version.version() == metadata.version("bakeoff")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/pyproject.toml").write_text('project = { name = "other", version = "9.9" }')
    assert version.version() == metadata.version("bakeoff")


def test_bench_takes_one_kind_of_load(capsys: pytest.CaptureFixture[str]):
    server = ("--engine", "openai", "--url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "tokenizer")
    assert in_process("bench", *server, "--concurrency", "2", "--rate", "3") == 2
    assert "give either a concurrency or a rate" in capsys.readouterr().err


def test_serve_takes_the_model_first_and_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, argv: started.append(argv))
    in_process("serve", "somewhere", "--port", "1")
    assert started[0][3:] == ["serve", "--model", "somewhere", "--port", "1"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert in_process("serve", "somewhere") == 2
    assert (
        "bakeoff serve needs torch and llguidance and safetensors and gguf; run: pip install" in capsys.readouterr().err
    )


def test_a_dry_run_says_what_would_run_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "e.toml"
    file.write_text(
        'name = "e"\nrepeats = 2\nmodel = { name = "m", tokenizer = "approximate" }\nloads = [{ concurrency = 1 }]\n'
        'workload = { name = "random" }\n[[engines]]\nadapter = "openai"\nurl = "http://127.0.0.1:9"\n', "utf-8"
    )  # fmt: skip
    assert in_process("run", str(file), "--dry-run", "--out", str(tmp_path / "runs")) == 2
    said = capsys.readouterr().err
    assert "random to 1 engine at 1 load, 2 repeats: 2 trials, about " in said
    assert "http://127.0.0.1:9 cannot be reached" in said
    assert not (tmp_path / "runs").exists()


def test_bench_of_an_address_where_nothing_listens_is_one_line(capsys: pytest.CaptureFixture[str]):
    url = f"http://127.0.0.1:{pick_port()}"
    assert in_process("bench", "--url", url) == 2
    assert capsys.readouterr().err.startswith(f"bakeoff: {url} cannot be reached: ")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (("--rate", "0"), "rate_per_s must be above 0"),
        (("--duration=-1",), "duration_s must be above 0"),
        (("--workers", "0"), "client.workers must be at least 1"),
        (("--workload", "chatt"), "chatt"),
        (("--extra-body", "{top_k: 20}"), "--extra-body is not a JSON object"),
        (("--extra-body", "[1]"), "--extra-body is not a JSON object"),
        (("--extra-body", '{"messages": []}'), "'messages' cannot be changed: the workload writes it"),
        (("--extra-body", '{"temprature": null}'), "there is no 'temprature' to leave out"),
        (("--header", "X-Trace=1"), "--header is written as 'NAME: VALUE'"),
        (("--temperature", "-1"), "temperature"),
    ],
)
def test_bench_refuses_mistakes_before_it_asks_the_server(
    mistake: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    assert in_process("bench", "--url", f"http://127.0.0.1:{pick_port()}", *mistake) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """The experiment of a bench, which is not measured."""
    monkeypatch.setattr(bench, "measured", lambda experiment, _: experiment)
    return api.bench


def test_bench_measures_longer_than_a_file_allows_by_default(planned: Callable[..., Experiment]):
    experiment = planned(url="http://h", engine="openai", model="m", tokenizer="approximate", duration=1e3)
    assert experiment.trial.max_window_s == 1e3


def test_bench_shapes_its_requests(planned: Callable[..., Experiment]):
    experiment = planned(
        "http://h", engine="openai", model="m", tokenizer="approximate", temperature=1.0, reasoning_effort="low",
        extra_body='{"top_k": 20, "stream_options": null}', header=["X-Trace: {session}", "Authorization: sk-12"],
    )  # fmt: skip
    shape = RequestShape(
        temperature=1.0, reasoning_effort="low", body={"top_k": 20, "stream_options": None},
        headers={"X-Trace": "{session}"},
    )  # fmt: skip
    assert experiment.request == shape
    assert experiment.engines[0].headers == {"Authorization": "sk-12"}, "a key is not stored"
    same = planned("http://h", engine="openai", model="m", tokenizer="approximate", extra_body={"top_k": 20})
    assert same.request.body == {"top_k": 20}


def test_bench_with_workers_elsewhere_need_not_reach_the_server_from_here(planned: Callable[..., Experiment]):
    url = f"http://127.0.0.1:{pick_port()}"
    experiment = planned(url=url, engine="openai", model="m", ray="auto")
    assert (experiment.client.ray, experiment.model.tokenizer) == ("auto", "approximate")
    assert experiment.quality.samples == 0, "the advice to set path in [model] would be no help"
    with pytest.raises(NotIdentified, match="cannot be reached from this machine; give --engine and --model"):
        planned(url=url, engine="openai", ray="auto")


def test_the_default_of_foreign_load_is_that_of_an_experiment():
    """The command line names it again, because ``--help`` must not import what declares it."""
    assert inspect.signature(api.bench).parameters["max_foreign_share"].default == TrialConfig().max_foreign_share


def test_every_function_has_the_parameters_of_its_command():
    """A command has more only to say how the result is shown, that there shall be none, or in whose words."""
    shown = {"json", "github", "junit", "markdown", "out", "dry_run", "every_metric", "from_"}
    commands = dict(commands_of(make_app()))
    names = "bench compare demo export gate history lab/calibrate lab/floor lab/machine plan profile run search"
    for name in names.split():
        function = inspect.signature(getattr(api, name.rpartition("/")[2])).parameters
        of_command = inspect.signature(commands[name.replace("/", " ")].default_command).parameters
        assert list(function) == [parameter for parameter in of_command if parameter in function], name
        assert of_command.keys() - function.keys() <= shown, name
        assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in function.values()), name


@pytest.mark.parametrize("named", [("m",), ("--model", "m"), ("--model=m",)])
def test_serve_passes_what_is_not_its_own_to_the_engine(named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    started: list[str] = []
    monkeypatch.setattr(os, "execv", lambda _, argv: started.extend(argv))
    in_process("serve", *named, "--no-enable-prefix-caching", "--block-size", "16", "--port", "1", "--dtype=float32")
    assert started[1:6] == ["-m", "bakeoff.reference_engine", "serve", "--model", "m"]
    assert started[6:] == ["--port", "1", "--no-enable-prefix-caching", "--block-size", "16", "--dtype=float32"]


def test_serve_has_a_help_and_errors_of_its_own(capsys: pytest.CaptureFixture[str]):
    assert in_process("serve", "--help") == 0
    assert "--environment" in capsys.readouterr().out
    assert in_process("serve") == 2
    error = capsys.readouterr().err
    assert "--model" in error
    assert error.endswith("; see bakeoff serve --help\n")
    assert in_process("serve", "m", "--log", "here") == 2
    assert "--log is for an engine that is started as a run would; add --engine reference" in capsys.readouterr().err


def test_every_help_has_three_examples_that_are_command_lines():
    app = make_app()
    handing_over = {"models prune", "models distil", "models trim", "models eagle", "models quantize", "lab claims"}
    for name, command in commands_of(app):
        examples = examples_of(command)
        assert len(examples) == (0 if name in handing_over else 3), name
        for line in examples:
            program, *words = shlex.split(line.partition(" |")[0].replace("$(", "").replace(")", ""))
            assert program == "bakeoff"
            app.parse_args(words, exit_on_error=False, print_error=False)
        assert any(line.startswith(f"bakeoff {name}") for line in examples or [f"bakeoff {name}"]), name


@pytest.mark.parametrize("name", RENAMED)
def test_a_command_of_an_earlier_version_names_what_replaces_it(name: str, capsys: pytest.CaptureFixture[str]):
    assert in_process(*name.split(), "runs/a") == 2
    words = RENAMED[name].removeprefix("bakeoff ").split()
    assert capsys.readouterr().err == f"bakeoff: bakeoff {name} is {RENAMED[name]} now\n"
    replacing = [command for command, _ in commands_of(make_app()) if " ".join(words).startswith(command)]
    assert replacing


def test_no_text_names_a_command_that_does_not_exist():
    known = {name for name, _ in commands_of(make_app())}
    first = {name.split()[0] for name in known}
    groups = {name.split()[0] for name in known if " " in name}
    found = (path for name in TEXTS for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name]))
    texts = (
        path for path in found if path.suffix in {".py", ".md", ".html", ".toml"} and "docs/results" not in str(path)
    )
    for path in texts:
        text = re.sub(r"from bakeoff import", "", path.read_text("utf-8"))
        for one, two in re.findall(r"(?<![\w./-])bakeoff ([a-z][a-z-]+)(?: ([a-z]+))?", text):
            assert one in first | PROSE, f"{path}: bakeoff {one}"
            if one in groups and two and two not in PROSE:
                assert any(f"{name} ".startswith(f"{one} {two} ") for name in known), f"{path}: bakeoff {one} {two}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "known", "--port", "1"), ["--served-model-name", "known", "--model", "/folder", "--port", "1"]),
        (
            ("--model=known", "--served-model-name=m"),
            ["--served-model-name", "known", "--model", "/folder", "--served-model-name=m"],
        ),
    ],
)
def test_serve_takes_the_name_of_a_known_model(
    arguments: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch
):
    def model_of(name: str) -> Model:
        return Model(name, "/folder")

    started: list[str] = []
    monkeypatch.setattr(os, "execv", lambda _, argv: started.extend(argv))
    monkeypatch.setattr(models, "KNOWN_MODELS", {"known": None})
    monkeypatch.setattr(known_models, "named_model", model_of)
    in_process("serve", *arguments)
    assert started[4:] == expected


def test_list_commands(capsys: pytest.CaptureFixture[str]):
    assert in_process("engines", "list") == 0
    assert in_process("models", "list") == 0
    assert in_process("workloads", "list") == 0
    printed = capsys.readouterr().out
    for name in ("reference: options device", "transformers", "smollm2-135m-instruct (Apache-2.0", "chat ", "random "):
        assert name in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "/no/such/run"), "is not a run folder"),
        (("compare", "/no/such/run", "/nor/this"), "is not a run folder"),
        (("run", "/no/such/file.toml"), "does not exist"),
        (("models", "pull", "smollm2-135m"), "did you mean 'smollm2-135m-instruct'?"),
        (("tun",), "see bakeoff"),
        (("run",), "see bakeoff"),
    ],
)
def test_mistakes_are_one_line_on_stderr(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]):
    assert in_process(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_unwritable_output_is_one_line_and_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    arguments = ("--engine", "openai", "--url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", str(tmp_path))
    assert in_process("bench", *arguments, "--concurrency", "1", "--out", str(tmp_path / "file" / "runs")) == 3
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "cannot make the folder" in printed
    assert printed.endswith("choose a folder you own with --out\n")


def test_an_unwritable_page_still_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = build_run(tmp_path, Sheet(finished=1))
    (run / "report.html").mkdir()
    assert in_process("report", str(run)) == 3
    printed = capsys.readouterr()
    assert "demo: COMPLETE" in printed.out
    assert (
        printed.err
        == f"bakeoff: cannot write {run}/report.html: Is a directory; free some space, or make its folder writable\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(errno.ENOSPC, "No space left", "/tmp/x"), 3, "cannot write /tmp/x: No space left; free some space"),
        (ExceptionGroup("", [OSError(errno.EROFS, "Read-only")]), 3, "cannot write a file: Read-only; free some space"),
        (
            ExceptionGroup("", [NotWritable("cannot write y: full")]),
            3,
            "bakeoff: cannot write y: full; free some space",
        ),
        (NotWritable("cannot write y: full", "buy a disk"), 3, "bakeoff: cannot write y: full; buy a disk\n"),
        (RunUnreadable("y is damaged"), 2, "bakeoff: y is damaged\n"),
    ],
)
def test_a_full_disk_met_anywhere_is_one_line_and_3(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
):
    app = cyclopts.App()

    @app.default
    def meet() -> None:
        raise error

    assert guarded(app, []) == code
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert line in printed


def test_bench_measures_a_running_server(tmp_path: Path):
    port = pick_port()
    order = json.dumps({"schedule": {"ttft_s": 0.02, "itl_s": 0.005}, "port": port, "core": None})
    with subprocess.Popen(
        [sys.executable, "-m", "bakeoff.harness.truth", order], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as truth:
        assert truth.stdout is not None
        truth.stdout.readline()
        done = bakeoff(
            "bench", "--url", f"http://127.0.0.1:{port}/v1", "--workload", "random", "--concurrency", 2,
            "--concurrency", 3, "--ramp", 0.1, "--duration", 0.5, "--max-foreign-share", 1, "--no-calibrate",
            "--out", tmp_path / "runs", "--json",
        )  # fmt: skip
        truth.communicate()
    assert done.returncode in {0, 3}, done.stderr  # 3: whatever else this machine does may void the trial
    summary = json.loads(done.stdout)
    assert summary["status"] == "complete"
    assert [cell["load"] for cell in summary["cells"]] == ["c=2", "c=3"]
    assert f"openai at http://127.0.0.1:{port}; model truth, tokenizer approximate" in done.stderr
    assert any(note.startswith("prompts are approximate") for note in results.load(summary["run"]).manifest.notes)
    assert Path(summary["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_and_compare_read_what_bench_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with inside(VirtualWorld({"reference": VirtualEngine()})):
        assert in_process(
            "bench", "--engine", "reference", "--url", "http://virtual/v1", "--model", "truth",
            "--tokenizer", str(checkpoint(tmp_path / "tok")), "--workload", "random", "--concurrency", "2",
            "--ramp", "1", "--duration", "5", "--repeats", "3", "--no-calibrate", "--out", str(tmp_path / "runs"),
            "--json",
        ) == 0  # fmt: skip
    summary = json.loads(capsys.readouterr().out)
    assert summary["cells"][0]["intervals"]["ttft_p50_s"]["n"] == 3
    assert summary["cells"][0]["uncalibrated"] == "client.calibrate is off"
    assert in_process("report", summary["run"]) == 0
    assert "c=2" in capsys.readouterr().out
    assert in_process("compare", summary["run"], summary["run"], "--json") == 0
    captured = capsys.readouterr()
    assert "A and B are the same trials: equal by construction" in captured.err
    comparisons = json.loads(captured.out)["comparisons"]
    judged = {comparison["metric"]: comparison["judgement"] for comparison in comparisons}
    assert judged.pop("peak_host_bytes") == "unclear"  # the server is not ours: its memory was not sampled
    assert judged.pop("requests_per_s") in {"same", "unclear"}  # few requests
    assert set(judged.values()) == {"same"}


@pytest.mark.model
def test_killing_the_harness_loses_nothing(model_folder: Path):
    """Kills once; make nightly kills harnesses, engines and writers at many instants."""
    bars = bars_of("crash.harness_killed", "--instants", "1", "--model", str(model_folder))
    assert [name for name, bar in bars.items() if not bar["pass"]] == []
