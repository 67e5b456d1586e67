import json
import subprocess
import sys
from pathlib import Path

import pytest

from engines import pick_port
from harness.cli import make_app
from harness.cli.guarded import guarded
from tests.workloads.small_tokenizers import checkpoint

ROOT = Path(__file__).parents[2]
BAKEOFF = Path(sys.executable).with_name("bakeoff")


def bakeoff(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BAKEOFF, *map(str, arguments)], capture_output=True, text=True, check=False)


def in_process(*arguments: str) -> int:
    return guarded(make_app(), arguments)


def bars_of(module: str, *arguments: str) -> dict[str, dict[str, object]]:
    """Run a benchmark as a stranger would and return its last line."""
    argv = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_help_names_every_command_and_imports_nothing_heavy():
    done = bakeoff("--help")
    for command in ("demo", "run", "bench", "report", "compare", "gate", "search", "frontier", "calibrate", "serve"):
        assert command in done.stdout
    for group in ("engines", "models", "workloads"):
        assert group in done.stdout
    code = "import sys, harness.cli; print([m for m in ('pandas', 'torch', 'numpy', 'aiohttp') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_lists(capsys: pytest.CaptureFixture[str]):
    assert in_process("engines", "list") == 0
    assert in_process("models", "list") == 0
    assert in_process("workloads", "list") == 0
    printed = capsys.readouterr().out
    for name in ("reference: options device", "transformers", "smollm2-135m-instruct (Apache-2.0", "chat ", "random "):
        assert name in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "/no/such/run"), "is not a run folder"),
        (("compare", "/no/such/run", "/nor/this"), "is not a run folder"),
        (("run", "/no/such/file.toml"), "does not exist"),
        (("models", "pull", "smollm2-135m"), "did you mean 'smollm2-135m-instruct'?"),
        (("tun",), "see bakeoff --help"),
        (("run",), "see bakeoff --help"),
    ],
)
def test_mistakes_are_one_line_on_stderr(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]):
    assert in_process(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_bench_measures_a_running_server_and_report_and_compare_read_it(tmp_path: Path):
    port = pick_port()
    order = json.dumps({"schedule": {"ttft_s": 0.02, "itl_s": 0.005}, "port": port, "core": None})
    with subprocess.Popen(
        [sys.executable, "-m", "harness.truth", order], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as truth:
        assert truth.stdout is not None
        truth.stdout.readline()
        done = bakeoff(
            "bench", "--engine", "reference", "--url", f"http://127.0.0.1:{port}/v1", "--model", "truth",
            "--tokenizer", checkpoint(tmp_path / "tok"), "--workload", "random", "--concurrency", 2,
            "--duration", 1.2, "--repeats", 3, "--no-calibrate", "--out", tmp_path / "runs", "--json",
        )  # fmt: skip
        truth.communicate()
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "complete"
    assert summary["cells"][0]["intervals"]["ttft_p50_s"]["n"] == 3
    assert Path(summary["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert summary["cells"][0]["uncalibrated"] == "client.calibrate is off"
    assert "c=2" in bakeoff("report", summary["run"]).stdout
    same = bakeoff("compare", summary["run"], summary["run"], "--json")
    judged = {comparison["metric"]: comparison["judgement"] for comparison in json.loads(same.stdout)["comparisons"]}
    assert judged.pop("peak_host_bytes") == "unclear"  # the server is not ours: its memory was not sampled
    assert set(judged.values()) == {"same"}


@pytest.mark.model
def test_each_mistake_of_the_list_gets_one_line(model_folder: Path):
    bars = bars_of("cli.errors", "--model", str(model_folder))
    assert [name for name, bar in bars.items() if not bar["pass"]] == []


@pytest.mark.model
def test_killing_the_harness_loses_nothing(model_folder: Path):
    bars = bars_of("crash.harness_killed", "--instants", "3", "--model", str(model_folder))
    assert [name for name, bar in bars.items() if not bar["pass"]] == []


@pytest.mark.model
def test_killing_the_engine_and_interrupting_leave_evidence_and_no_orphan(model_folder: Path):
    bars = bars_of("crash.engine_killed", "--model", str(model_folder))
    assert [name for name, bar in bars.items() if not bar["pass"]] == []
