"""TGI through the whole harness: at an address, the OpenAI routes, a launched process, and each bias of a benchmark."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import sys
from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.engines.errors import EngineError
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, RunStatus, TokenSource, Verdict
from tests.engines.fakes.answers import ScriptedAnswer, by_tokenizer
from tests.engines.fakes.stage import Script, Token
from tests.engines.fakes.tgi import PIECE_TOKENS, FakeTgi
from tests.engines.fakes.tgi_flags import arguments, resolved
from tests.engines.schema import body_problems, load_spec
from tests.harness.fake_runs import SHORT, attached_run, measured_run, only, tokenizer
from tests.results import one_request

PACE = Script(ttft_s=0.02, gap_s=0.004)
ROOT = Path(__file__).parents[3]


def flags(*words: str):
    return resolved(arguments().parse_args(["--model-id", "m", *words]))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeTgi, results.Run]:
    """A fake that does nothing unusual, and a run against it that is long enough to judge."""
    fake = FakeTgi(PACE, ["comments"], flags=flags("--max-batch-total-tokens", "32000"))
    return fake, attached_run(tmp_path_factory.mktemp("plain"), fake, "tgi")


class TestAttached:
    def test_every_token_has_its_id_and_its_time(self, plain: tuple[FakeTgi, results.Run]) -> None:
        trial, requests = only(plain[1])
        assert (trial.record.verdict, trial.record.findings) == (Verdict.VALID, [])
        assert {request.outcome for request in requests} == {Outcome.OK}
        assert {request.token_source for request in requests} == {TokenSource.IDS}
        assert {tuple(request.chunk_tokens) for request in requests} == {(1, 1, 1, 1, 1)}
        assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(8, 5)}
        assert {request.finish_reason for request in requests} == {"length"}

    def test_what_it_is_sent_keeps_to_the_published_schema(self, plain: tuple[FakeTgi, results.Run]) -> None:
        spec = load_spec("tgi-openapi.json")
        assert len(plain[0].bodies) > 6
        for body in plain[0].bodies:
            assert body_problems(spec, "/generate_stream", json.dumps(body).encode()) == []

    def test_its_own_page_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        fake = FakeTgi(PACE, flags=flags("--max-batch-total-tokens", "32000"))
        trial, _ = only(attached_run(tmp_path, fake, "tgi", samples=True))
        frames = [sample.values for sample in trial.telemetry if sample.source == "server"]
        last, answers = frames[-1], len(fake.bodies)
        asked = sum(body["parameters"]["max_new_tokens"] for body in fake.bodies)
        assert (last["output_tokens_total"], last["prompt_tokens_total"]) == (asked, 8 * answers)
        assert (last["accepted_tokens_total"], last["e2e_s_count"]) == (0, answers)
        assert last.get("kv_usage_share") is None
        assert last.get("ttft_s_count") is None

    def test_its_openai_routes_count_by_the_chunk(self, tmp_path: Path) -> None:
        fake = FakeTgi(Script(ttft_s=0.01, natural_length=4))
        _, requests = only(attached_run(tmp_path, fake, "tgi", engine={"options": {"api": "openai"}}))
        assert {request.token_source for request in requests} == {TokenSource.CHUNKS}
        assert {request.output_tokens for request in requests} == {4}

    def test_chats_are_answered_by_the_openai_route(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.jsonl"
        lines = ({"messages": [{"role": "user", "content": f"Tell me about {i}"}], "max_tokens": 4} for i in range(20))
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        fake = FakeTgi(Script(ttft_s=0.01, natural_length=3))
        trial, requests = only(
            attached_run(tmp_path, fake, "tgi", workload={"name": "trace", "options": {"path": str(trace)}})
        )
        assert all("messages" in body for body in fake.bodies)
        assert {request.outcome for request in requests} == {Outcome.OK}
        assert {(request.token_source, request.output_tokens) for request in requests} == {(TokenSource.CHUNKS, 3)}
        assert FindingCode.INPUT_LENGTH not in {finding.code for finding in trial.record.warnings}


class TestBiases:
    def test_answers_that_end_early_are_a_warning_and_timed_per_token(self, tmp_path: Path) -> None:
        """Bias 1 and 5: no length can be forced, and the end of sequence is a token that is counted and timed."""
        fake = FakeTgi(Script(ttft_s=0.02, gap_s=0.01, natural_length=3))
        trial, requests = only(attached_run(tmp_path, fake, "tgi"))
        assert {request.finish_reason for request in requests} == {"eos_token"}
        assert {(request.output_tokens, request.total_chunk_tokens) for request in requests} == {(3, 3)}
        assert all("</s>" not in request.text for request in requests)
        (finding,) = [warning for warning in trial.record.warnings if warning.code is FindingCode.OUTPUT_LENGTH]
        assert (finding.parameters["output_tokens"], finding.parameters["asked_tokens"]) == (3, 5)
        assert trial.record.engine_description is not None
        assert any("compare figures per token" in note for note in trial.record.engine_description.notes)
        first = requests[0].chunk_ns
        assert one_request.tpot_s(requests[0]) == pytest.approx((first[-1] - first[0]) / 2e9)

    def test_the_stall_of_an_answer_in_pieces_is_seen_where_it_was(self, tmp_path: Path) -> None:
        """Bias 2: after 1,024 tokens the server queues the request again."""
        fake = FakeTgi(Script(ttft_s=0.15), flags=flags("--max-total-tokens", "8192"))
        workload = {"name": "random", "options": {"input_tokens": 8, "output_tokens": 1100}}
        limits = {**SHORT, "max_requests": 1}
        changes = {"workload": workload, "trial": limits, "loads": [{"concurrency": 1}], "spoilt_by": set()}
        _, (request,) = only(attached_run(tmp_path, fake, "tgi", **changes))
        assert (request.outcome, request.total_chunk_tokens) == (Outcome.OK, 1100)
        asked = [body["parameters"]["max_new_tokens"] for body in fake.bodies]
        assert 1100 in asked
        assert fake.prefills == sum(math.ceil(tokens / PIECE_TOKENS) for tokens in asked)
        gaps_s = [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(request.chunk_ns)]
        assert gaps_s[1023] > 0.12

    def test_no_two_prompts_are_alike_since_its_prefix_cache_cannot_be_emptied(
        self, plain: tuple[FakeTgi, results.Run]
    ) -> None:
        """Bias 3."""
        fake, run = plain
        prompts = [body["inputs"] for body in fake.bodies]
        assert len(set(prompts)) == len(prompts)
        trial, _ = only(run)
        assert trial.record.traffic is not None
        assert not trial.record.traffic.cache_reset

    def test_refusals_above_its_limit_are_failures_though_they_come_with_status_200(self, tmp_path: Path) -> None:
        """Bias 4."""
        fake = FakeTgi(Script(ttft_s=0.1), flags=flags("--max-concurrent-requests", "2"))
        trial, requests = only(attached_run(tmp_path, fake, "tgi", loads=[{"concurrency": 6}]))
        assert trial.record.verdict is Verdict.INVALID
        refused = [request for request in requests if request.outcome is Outcome.STREAM_ERROR]
        assert {(request.status, request.error) for request in refused} == {(200, "Model is overloaded")}
        finding = trial.record.findings[0]
        assert (finding.code, finding.parameters["outcome"]) == (FindingCode.FAILED_REQUESTS, "stream_error")

    def test_a_prompt_that_it_counts_differently_is_a_warning(self, tmp_path: Path) -> None:
        """Bias 6: prompts are text, so its count is held against the tokenizer's."""
        count = by_tokenizer(tokenizer(tmp_path))
        trial, _ = only(attached_run(tmp_path, FakeTgi(PACE, count=lambda prompt: count(prompt) + 1), "tgi"))
        (finding,) = [warning for warning in trial.record.warnings if warning.code is FindingCode.INPUT_LENGTH]
        assert (finding.parameters["engine_tokens"], finding.parameters["planned_tokens"]) == (9, 8)

    def test_the_budget_that_its_warm_up_found_is_stored(self, plain: tuple[FakeTgi, results.Run]) -> None:
        """Bias 7: it depends on the memory that was free."""
        described = only(plain[1])[0].record.engine_description
        assert described is not None
        assert (described.version, described.details["max_batch_total_tokens"]) == ("3.3.6-dev0", 32000)

    def test_a_batch_that_fails_fails_its_requests_and_not_the_run(self, tmp_path: Path) -> None:
        script = ScriptedAnswer(answer=tuple(Token(100 + i, " a") for i in range(5)), fails_after=2, ttft_s=0.01)
        run = attached_run(tmp_path, FakeTgi(script), "tgi")
        trial, requests = only(run)
        assert run.status is RunStatus.COMPLETE
        assert {request.outcome for request in requests} == {Outcome.STREAM_ERROR}
        assert {request.error for request in requests} == {"Request failed during generation: Server error: CUDA error"}
        assert trial.record.verdict is Verdict.INVALID

    def test_a_refused_body_is_reported_in_the_servers_words(self, tmp_path: Path) -> None:
        """A prompt that is too long: HTTP 200, and the reason in the stream."""
        limit = flags("--max-input-tokens", "4", "--max-total-tokens", "64")
        _, requests = only(attached_run(tmp_path, FakeTgi(PACE, flags=limit), "tgi"))
        assert {(request.outcome, request.error) for request in requests} == {
            (Outcome.STREAM_ERROR, "Input validation error: `inputs` must have less than 4 tokens. Given: 8")
        }


def launcher(tmp_path: Path) -> Path:
    """The fake, under the name of the launcher."""
    program = tmp_path / "text-generation-launcher"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.engines.fakes.tgi import main\nmain()\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


def launched_run(tmp_path: Path, **side: object) -> results.Run:
    folder = tokenizer(tmp_path)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    engine = {"adapter": "tgi", "program": str(launcher(tmp_path)), **side}
    return asyncio.run(measured_run(tmp_path, engine, model={"path": str(folder)}))


class TestLaunched:
    def test_the_launcher_takes_its_command_line_serves_and_is_gone(self, tmp_path: Path) -> None:
        run = launched_run(
            tmp_path,
            spec={"max_model_len": 2048, "enable_prefix_caching": False, "max_num_seqs": 8},
            options={"max_concurrent_requests": 64, "validation_workers": 1},
            env={"FAKE_SCRIPT": '{"ttft_s":0.01,"gap_s":0.002}', "ATTENTION": "paged"},
        )
        trial, requests = only(run)
        assert run.status is RunStatus.COMPLETE
        assert {(request.outcome, request.prompt_tokens) for request in requests} == {(Outcome.OK, 8)}
        described = trial.record.engine_description
        assert described is not None
        assert (described.details["max_total_tokens"], described.details["max_input_tokens"]) == (2048, 2047)
        assert (described.details["max_concurrent_requests"], described.details["validation_workers"]) == (64, 1)
        assert described.env["PREFIX_CACHING"] == "0"
        assert described.argv[1:3] == ["--model-id", str(tokenizer(tmp_path))]
        assert not [line for line in _commands() if str(tmp_path) in line]

    def test_a_launcher_that_refuses_its_flags_says_why(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match="takes dtype or quantization"):
            launched_run(tmp_path, spec={"dtype": "float16", "quantization": "awq"})
        run = launched_run(tmp_path, args=["--max-total-tokens", "16", "--max-input-tokens", "16"])
        assert run.status is RunStatus.FAILED
        assert "max_input_tokens must be <" in (run.manifest.failure or "")


def _commands() -> list[str]:
    """Command lines of all processes that run, but for this one."""
    commands = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(place.name) != os.getpid():
                commands.append((place / "cmdline").read_bytes().decode("utf-8", "replace"))
    return commands
