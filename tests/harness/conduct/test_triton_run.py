"""Triton's fake through the whole harness: at an address, and as a process with a port of metrics of its own."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bakeoff import results
from bakeoff.results.records import Outcome, RunStatus, TokenSource, Verdict
from bakeoff.workloads import Tokenizer
from bakeoff.workloads.text import writer
from tests.engines.fakes.stage import Script, Token, running
from tests.engines.fakes.triton import TritonFake, TritonMetrics
from tests.harness.fake_runs import measured_run, only, tokenizer

ROOT = Path(__file__).parents[3]
TRITON = "from tests.engines.fakes.triton import main; main(sys.argv[1:])"


class Spoken(Script, frozen=True, kw_only=True):
    """Answers in words of one token each, since only the tokenizer counts Triton's tokens."""

    words: tuple[str, ...]

    def tokens(self, wanted: int, *, forced: bool = False) -> list[Token]:
        tokens = super().tokens(wanted, forced=forced)
        return [
            token if token.special else Token(token.id, self.words[i % len(self.words)])
            for i, token in enumerate(tokens)
        ]


def spoken(tmp_path: Path, **changes: Any) -> Spoken:
    words = writer(Tokenizer(tokenizer(tmp_path))).words
    return Spoken(words=tuple(words[:40]), **{"ttft_s": 0.02, "gap_s": 0.004, **changes})


def attached(
    tmp_path: Path, script: Script, faults: Sequence[str] = (), options: dict[str, Any] | None = None, **changes: Any
) -> tuple[results.Run, TritonFake, TritonMetrics]:
    async def scene() -> tuple[results.Run, TritonFake, TritonMetrics]:
        fake = TritonFake(script, faults)
        page = TritonMetrics(fake)
        async with running(fake) as url, running(page) as page_url:
            port = int(page_url.rpartition(":")[2])
            side = {"adapter": "triton", "url": url, "options": {"metrics_port": port, **(options or {})}}
            return await measured_run(tmp_path, side, **changes), fake, page

    return asyncio.run(scene())


def frames(run: results.Run) -> list[dict[str, Any]]:
    return [sample.values for trial in run.finished for sample in trial.telemetry if sample.source == "server"]


def test_answers_that_end_by_being_closed_are_whole_and_counted_by_the_tokenizer(tmp_path: Path) -> None:
    run, fake, page = attached(tmp_path, spoken(tmp_path, group=2), samples=True)
    trial, requests = only(run)
    assert {(request.outcome, request.finish_reason) for request in requests} == {(Outcome.OK, None)}
    assert {request.token_source for request in requests} == {TokenSource.TOKENIZER}
    assert {tuple(request.chunk_tokens) for request in requests} == {(2, 2, 1)}
    assert {request.prompt_tokens for request in requests} == {None}
    assert not any(body["text_input"] in request.text for body in fake.bodies for request in requests)
    assert (fake.open, fake.dropped) == (0, 0)
    read = frames(run)
    assert page.reads == len(read) > 2
    assert {"running", "waiting", "kv_usage_share"} <= set(read[-1])
    description = trial.record.engine_description
    assert (description.adapter, description.version) == ("triton", "2.62.0")
    assert len(description.notes) == 3


def test_the_llm_api_tells_why_it_ended_and_may_end_early(tmp_path: Path) -> None:
    run, fake, _ = attached(tmp_path, spoken(tmp_path, natural_length=4), options={"fields": "llm-api"})
    _, requests = only(run)
    assert all("sampling_param_max_tokens" in body for body in fake.bodies)
    assert {(request.outcome, request.finish_reason) for request in requests} == {(Outcome.OK, "stop")}
    assert {sum(request.chunk_tokens) for request in requests} == {3}, "the end of sequence has no text and no id"
    assert "the length of its answers cannot be forced" in run.finished[0].record.engine_description.notes


def test_errors_under_http_200_void_the_trial(tmp_path: Path) -> None:
    run, _, _ = attached(tmp_path, spoken(tmp_path), ["error"])
    trial, requests = only(run)
    assert trial.record.verdict is Verdict.INVALID
    assert {(request.outcome, request.error) for request in requests} == {
        (Outcome.STREAM_ERROR, "the executor is gone")
    }


def test_chats_are_written_out_by_the_models_template(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = ({"messages": [{"role": "user", "content": f"Tell me about {i}"}], "max_tokens": 4} for i in range(20))
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    workload = {"name": "trace", "options": {"path": str(trace)}}
    run, fake, _ = attached(tmp_path, spoken(tmp_path), workload=workload)
    assert run.status is RunStatus.COMPLETE
    model = Tokenizer(tokenizer(tmp_path))
    _, requests = only(run)
    wanted = {request.requested_input_tokens for request in requests}
    assert {model.count(body["text_input"]) for body in fake.bodies} == wanted
    assert all("assistant" in body["text_input"] for body in fake.bodies)


def test_it_is_started_on_its_repository_with_a_free_port_of_metrics(tmp_path: Path) -> None:
    program, repository = tmp_path / "tritonserver", tmp_path / "repository"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n{TRITON}\n")
    program.chmod(0o755)
    repository.mkdir()
    side = {"adapter": "triton", "program": str(program), "options": {"model_repository": str(repository)}}
    folder = tokenizer(tmp_path)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    run = asyncio.run(measured_run(tmp_path, side, model={"path": str(folder)}, samples=True))
    trial, requests = only(run)
    assert {request.outcome for request in requests} == {Outcome.OK}
    (log,) = (run.path / "engines").glob("*.log")
    flags = json.loads(log.read_text(encoding="utf-8").splitlines()[0])
    assert flags["model_repository"] == str(repository)
    assert flags["allow_grpc"] == "false"
    argv = trial.record.engine_description.argv
    assert argv[argv.index("--metrics-port") + 1] == str(flags["metrics_port"])
    assert any("running" in frame for frame in frames(run))
