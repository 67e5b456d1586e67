"""SGLang's fake through the whole harness: at an address, and started as a process by the adapter's command line."""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import tokenizers

from bakeoff import results
from bakeoff.engines import pick_port
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, Phase, RequestRecord, RunStatus, TokenSource, Verdict
from tests.engines.fakes.sglang import SLOW_FIRST_S, FakeSglang
from tests.engines.fakes.sglang_flags import arguments
from tests.engines.fakes.stage import Script, running
from tests.harness.fake_runs import SHORT, measured_run
from tests.workloads.small_tokenizers import checkpoint

ROOT = Path(__file__).parents[3]
PACE = Script(ttft_s=0.03, gap_s=0.01)
SLACK = 4
"""The fake shares this process, and the machine may be busy."""
INPUT_TOKENS, OUTPUT_TOKENS = 12, 9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, which is all that the fake reads of a model."""
    folder = checkpoint(tmp_path_factory.mktemp("model"))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


def environment(folder: Path) -> str:
    """A venv in which ``python -m sglang.launch_server`` is the fake."""
    info = folder / "lib/python3.11/site-packages/sglang-0.5.23.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    python = folder / "bin/python"
    python.parent.mkdir()
    call = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m tests.engines.fakes.sglang"
    python.write_text(f'#!/bin/sh\n[ "$2" = sglang.launch_server ] || exit 3\nshift 2\n{call} "$@"\n')
    python.chmod(0o755)
    return str(folder)


def launched(folder: Path, *, script: Script = PACE, **side: Any) -> dict[str, Any]:
    env = {"FAKE_SCRIPT": msgspec.json.encode(script).decode()}
    return {"adapter": "sglang", "environment": environment(folder), "env": env, **side}


async def run(tmp_path: Path, model: Path, side: dict[str, Any], **changes: Any) -> results.Run:
    data: dict[str, Any] = {
        "model": {"name": "smol", "path": str(model)},
        "workload": {"name": "random", "options": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}},
        "loads": [{"concurrency": 2}],
        "trial": SHORT,
        **changes,
    }
    return await measured_run(tmp_path, side, **data)


def attached(tmp_path: Path, model: Path, fake: FakeSglang, *, api: str, **changes: Any) -> results.Run:
    async def scene() -> results.Run:
        async with running(fake) as url:
            side = {"adapter": "sglang", "url": url, "options": {"api": api}}
            return await run(tmp_path, model, side, **changes)

    return asyncio.run(scene())


def fake_of(model: Path, script: Script = PACE, *faults: str) -> FakeSglang:
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    flags = arguments().parse_args(["--model-path", str(model), "--enable-cache-report", "--enable-metrics"])
    return FakeSglang(script, faults, encode=lambda text: tokenizer.encode(text).ids, flags=flags)


def measured(run: results.Run) -> list[RequestRecord]:
    return [request for trial in run.finished for request in trial.requests if request.phase is Phase.MEASURED]


@pytest.mark.parametrize(("api", "path"), [("openai", "max_tokens"), ("native", "sampling_params")])
def test_at_an_address_every_token_is_counted_and_timed_on_an_empty_cache(
    tmp_path: Path, model: Path, api: str, path: str
) -> None:
    """Biases 2 and 4: the cache is emptied before the load, and nobody asked for /health, which generates tokens."""
    fake = fake_of(model)
    run = attached(tmp_path, model, fake, api=api)
    (trial,) = run.finished
    assert (run.status, trial.record.verdict, trial.record.warnings) == (RunStatus.COMPLETE, Verdict.VALID, [])
    assert all(path in body for body in fake.bodies)
    for request in measured(run):
        assert (request.outcome, request.token_source) == (Outcome.OK, TokenSource.IDS)
        assert (request.prompt_tokens, request.chunk_tokens) == (INPUT_TOKENS, [1] * OUTPUT_TOKENS)
        assert request.cached_tokens is not None
    assert trial.record.traffic is not None
    assert trial.record.traffic.cache_reset
    assert (fake.flushes, fake.health_tokens) == (1, 0)
    assert PACE.gap_s * 0.95 < (trial.metrics["itl_p50_s"].value or 0) < PACE.gap_s * SLACK
    assert PACE.ttft_s * 0.95 < (trial.metrics["ttft_p50_s"].value or 0) < PACE.ttft_s * SLACK


def test_several_tokens_in_one_event_are_several_tokens(tmp_path: Path, model: Path) -> None:
    """Bias 8: ITL is of tokens, whatever the chunks hold."""
    script = msgspec.structs.replace(PACE, group=3)
    run = attached(tmp_path, model, fake_of(model, script), api="native")
    assert {tuple(request.chunk_tokens) for request in measured(run)} == {(3, 3, 3)}
    (trial,) = run.finished
    itl_s, gap_s = (trial.metrics[name].value for name in ("itl_p50_s", "chunk_gap_p50_s"))
    assert gap_s is not None
    assert itl_s == pytest.approx(gap_s / 3, rel=1e-3)
    assert PACE.gap_s * 0.95 < itl_s < PACE.gap_s * SLACK


def test_the_first_request_after_a_start_is_no_measurement(tmp_path: Path, model: Path) -> None:
    """The ramp absorbs what is slow only once."""
    fake = fake_of(model, PACE, "slow-first")
    run = attached(tmp_path, model, fake, api="openai")
    (trial,) = run.finished
    ramp = [request for request in trial.requests if request.phase is Phase.RAMP]
    assert sum((request.chunk_ns[0] - request.planned_ns) / 1e9 > SLOW_FIRST_S for request in ramp) == 1
    assert max((request.chunk_ns[0] - request.planned_ns) / 1e9 for request in measured(run)) < SLOW_FIRST_S


def test_errors_under_http_200_void_a_trial(tmp_path: Path, model: Path) -> None:
    run = attached(tmp_path, model, fake_of(model, PACE, "late-error"), api="native")
    (trial,) = run.finished
    assert trial.record.verdict is Verdict.INVALID
    sent = [request for request in trial.requests if request.phase is Phase.RAMP]
    assert {request.outcome for request in sent} <= {Outcome.STREAM_ERROR, Outcome.CANCELLED}
    (finding,) = [finding for finding in trial.record.invalidating if finding.code is FindingCode.RAMP_FAILED]
    assert str(finding.parameters["error"]).startswith("CUDA error")


def test_it_is_started_by_the_real_command_line_described_and_stopped(tmp_path: Path, model: Path) -> None:
    side = launched(tmp_path / "venv", options={"api": "native", "stream_interval": 3}, port=pick_port())
    spec = {"max_model_len": 2048, "dtype": "bfloat16", "seed": 7, "max_num_seqs": 16}
    result = asyncio.run(run(tmp_path, model, side, spec=spec))
    (trial,) = result.finished
    described = trial.record.engine_description
    assert (trial.record.verdict, described.version) == (Verdict.VALID, "0.5.23")
    assert described.argv[1:3] == ["-m", "sglang.launch_server"]
    details = {name: described.details[name] for name in ("dtype", "context_length", "random_seed", "stream_interval")}
    assert details == {"dtype": "bfloat16", "context_length": 2048, "random_seed": 7, "stream_interval": 3}
    assert {tuple(request.chunk_tokens) for request in measured(result)} == {(3, 3, 3)}
    assert trial.record.traffic is not None
    assert trial.record.traffic.cache_reset
    assert not [
        connection
        for connection in psutil.net_connections("tcp")
        if connection.laddr.port == side["port"] and connection.status == "LISTEN"
    ]


def test_a_flag_that_it_does_not_know_fails_the_run_with_its_own_words(tmp_path: Path, model: Path) -> None:
    side = launched(tmp_path / "venv", args=["--no-such-flag"])
    result = asyncio.run(run(tmp_path, model, side))
    assert result.status is RunStatus.FAILED
    assert result.manifest.failure is not None
    assert "unrecognized arguments: --no-such-flag" in result.manifest.failure
