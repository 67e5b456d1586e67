"""What works once everything is loaded must work in a fresh process, too: each module's import, and each command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bakeoff.harness.cli import commands_of, make_app
from tests.fresh import PACKAGES, ROOT, modules
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run
from tests.results.views.test_views_import import result
from tests.workloads.small_tokenizers import checkpoint

SHEET = Sheet(engines={"a": FAST, "b": SLOW}, loads=LOADS[:1], requests=6, invalid=(), regret=None, run_id="run")
EXPERIMENT = """
name = "e"
model = { name = "m", tokenizer = "tokenizer" }
engines = [{ adapter = "openai", url = "http://127.0.0.1:1" }]
workload = { name = "random", options = { input_tokens = 8, output_tokens = 5 } }
loads = [{ concurrency = 1 }, { concurrency = 2 }]
"""
SERVER = "--ramp 0.1 --engine vllm --url http://127.0.0.1:1 --model m --tokenizer tokenizer --workload random"
COMMANDS = {
    "bench": (f"{SERVER} --concurrency 1 --duration 0.1 --no-calibrate", 3, "bakeoff: run INVALID: vllm, repeat 1: "),
    "compare": ("runs/run@a runs/run@b", 0, "TTFT"),
    "dashboard": ("nothing --port 0", 2, "is not a folder"),
    "demo": ("--out file", 3, "cannot make the folder"),
    "doctor": ("--json extra", 2, "extra"),  # what it finds depends on the machine; test_doctor.py has its exit codes
    "engines install": ("nothing", 2, "unknown environment 'nothing'"),
    "engines remove": ("nothing", 2, "unknown environment 'nothing'"),
    "engines list": ("vllm", 0, "vllm: options block_size"),
    "export": ("runs/run --as csv --out tables", 0, "tables/trials.csv"),
    "gate": ("--baseline runs/run@a --candidate runs/run@b", 1, "TPOT p50 at c=1"),
    "history": ("runs --name demo", 2, "the longest series has 1 runs"),
    "import": ("vllm vllm.json", 0, "report: "),
    "lab calibrate": ("--gaps-ms 0", 2, "gap"),
    "lab claims": ("list acceptance-70b", 0, "not testable here: both checkpoints, and GPUs that hold them"),
    "lab floor": ("runs/run", 2, ""),
    "lab machine": ("--seconds 0", 2, "seconds"),
    "lab truth": ("--fault nothing", 2, "--fault nothing is not understood"),
    "models distil": ("nothing student --out out", 2, "unknown model 'nothing'"),
    "models eagle": ("nothing --out out", 2, "unknown model 'nothing'"),
    "models eval": ("", 2, "give either a model's folder or name"),
    "models list": ("", 0, "smollm2-135m-instruct"),
    "models prune": ("nothing --out out", 2, "unknown model 'nothing'"),
    "models pull": ("nothing", 2, "nothing"),
    "models quantize": ("nothing --out out --method int8", 2, "unknown model 'nothing'"),
    "models trim": ("nothing", 2, "unknown model 'nothing'"),
    "plan": ("smollm2-135m --gpu h200", 0, "0.13 G parameters; 257 MiB in bf16"),
    "profile": ("experiment.toml", 2, "profile the adapter 'reference' or 'vllm'"),
    "report": ("runs/run", 0, "report: runs/run/report.html"),
    "run": ("experiment.toml --out file", 3, "cannot make the folder"),
    "search": ("experiment.toml --slo ttft_p99<1s --out file", 3, "cannot make the folder"),
    "serve": ("tokenizer --engine openai", 2, "needs the url of a server that runs already"),
    "workloads fit": ("trace.csv --option max_rows=60", 0, "trace.toml"),
    "workloads list": ("", 0, "random"),
    "workloads rules": ("", 0, "agentx-harness-1.0"),
    "workloads sample": ("random -n 1 --tokenizer tokenizer", 0, '"turns"'),
    "workloads show": ("random --sessions 5 --tokenizer tokenizer", 0, "random"),
}
"""Of each command: arguments, exit status, and some of the output."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that the commands read."""
    build_run(tmp_path / "runs", SHEET)
    (checkpoint(tmp_path / "tokenizer") / "config.json").write_text("{}")
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "vllm.json").write_bytes(msgspec.json.encode(result()))
    rows = "".join(f"{number / 2},{100 + number},10\n" for number in range(60))
    (tmp_path / "trace.csv").write_text(f"at_s,input_tokens,output_tokens\n{rows}")
    return tmp_path


def fresh(job: str, folder: Path, stdin: str = "") -> str:
    """Output of :mod:`tests.fresh` in a folder that is also the user's home."""
    argv = [sys.executable, "-m", "tests.fresh", job]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    return subprocess.run(argv, cwd=folder, env=env, input=stdin, capture_output=True, text=True, check=True).stdout


@pytest.mark.nightly
def test_every_module_imports_alone(tmp_path: Path):
    lines = [line.split(maxsplit=2) for line in fresh("imports", tmp_path).splitlines()]
    assert [line for line in lines if line[0] == "failed"] == []
    without = {line[1] for line in lines if line[0] == "lacks"}
    imported = {line[1] for line in lines}
    expected = {name for package in PACKAGES for name in modules(package)}
    assert {name for name in expected - imported if not name.startswith(tuple(without))} == set()


def test_every_command_runs(folder: Path):
    assert {name for name, _ in commands_of(make_app())} == set(COMMANDS)
    commands = [[*name.split(), *words.split()] for name, (words, _, _) in COMMANDS.items()]
    outputs = json.loads(fresh("commands", folder, json.dumps(commands)))
    for (name, (_, status, text)), (exit_status, output) in zip(COMMANDS.items(), outputs, strict=True):
        assert "Traceback" not in output, f"{name}: {output}"
        assert (exit_status, text in output) == (status, True), f"{name}: {output}"
