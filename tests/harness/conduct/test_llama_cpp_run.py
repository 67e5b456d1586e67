"""llama.cpp's servers through the whole harness: at an address, as launched processes, and each bias of a benchmark."""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bakeoff import results
from bakeoff.engines import pick_port
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, RunStatus, TokenSource, Verdict
from tests.engines.fakes.answers import ScriptedAnswer, by_tokenizer
from tests.engines.fakes.llama_cpp import FakeLlamaServer
from tests.engines.fakes.llama_cpp_flags import defaults
from tests.engines.fakes.llama_cpp_python import FakeLlamaCppPython
from tests.engines.fakes.llama_cpp_python import arguments as python_arguments
from tests.engines.fakes.stage import Script, Token
from tests.engines.models.gguf_heads import gguf_head
from tests.harness.fake_runs import SHORT, attached_run, measured_run, only, tokenizer
from tests.results import one_request

PACE = Script(ttft_s=0.02, gap_s=0.004)
ROOT = Path(__file__).parents[3]
OPENAI = {"options": {"api": "openai"}}
SLOTS = ("-c", "32768", "-np", "4")


def chats(folder: Path) -> dict[str, Any]:
    trace = folder / "trace.jsonl"
    lines = ({"messages": [{"role": "user", "content": f"Tell me about {i}"}], "max_tokens": 4} for i in range(20))
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {"name": "trace", "options": {"path": str(trace)}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeLlamaServer, results.Run]:
    """A fake that does nothing unusual but send pings, and a run against it that is long enough to judge."""
    fake = FakeLlamaServer(PACE, ["pings"], flags=defaults(*SLOTS))
    return fake, attached_run(tmp_path_factory.mktemp("plain"), fake, "llama_cpp")


class TestLlamaServer:
    def test_every_token_has_its_id_and_its_time(self, plain: tuple[FakeLlamaServer, results.Run]) -> None:
        trial, requests = only(plain[1])
        assert (trial.record.verdict, trial.record.findings) == (Verdict.VALID, [])
        assert {request.outcome for request in requests} == {Outcome.OK}
        assert {request.token_source for request in requests} == {TokenSource.IDS}
        assert {tuple(request.chunk_tokens) for request in requests} == {(1, 1, 1, 1, 1)}
        assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(8, 5)}
        assert {request.finish_reason for request in requests} == {"length"}

    def test_every_request_is_greedy_streamed_and_of_the_planned_length(
        self, plain: tuple[FakeLlamaServer, results.Run]
    ) -> None:
        """None of these is its default; without a stream, an answer would keep its slot after its client has left."""
        bodies = plain[0].bodies
        assert len(bodies) > 6
        for body in bodies:
            assert (body["temperature"], body["repeat_penalty"], body["ignore_eos"], body["stream"]) == (
                0,
                1,
                True,
                True,
            )

    def test_no_two_prompts_are_alike_since_its_cache_cannot_be_emptied(
        self, plain: tuple[FakeLlamaServer, results.Run]
    ) -> None:
        fake, run = plain
        prompts = [body["prompt"] for body in fake.bodies]
        assert len(set(prompts)) == len(prompts)
        trial, _ = only(run)
        assert trial.record.traffic is not None
        assert not trial.record.traffic.cache_reset
        assert fake.erased == []

    def test_its_openai_routes_are_counted_by_their_usage(self, tmp_path: Path) -> None:
        fake = FakeLlamaServer(PACE, flags=defaults(*SLOTS))
        _, requests = only(attached_run(tmp_path, fake, "llama_cpp", engine=OPENAI))
        assert {(request.outcome, request.token_source) for request in requests} == {(Outcome.OK, TokenSource.CHUNKS)}
        assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(8, 5)}
        assert all("verbose" not in body for body in fake.bodies)

    def test_ids_on_its_openai_routes_are_had_for_asking(self, tmp_path: Path) -> None:
        fake = FakeLlamaServer(PACE, flags=defaults(*SLOTS))
        side = {"options": {"api": "openai", "token_ids": True}}
        _, requests = only(attached_run(tmp_path, fake, "llama_cpp", engine=side))
        assert {(request.outcome, request.token_source) for request in requests} == {(Outcome.OK, TokenSource.IDS)}

    @pytest.mark.parametrize("api", ["native", "openai"])
    def test_chats_are_answered_by_the_openai_route(self, tmp_path: Path, api: str) -> None:
        fake = FakeLlamaServer(PACE, flags=defaults(*SLOTS))
        changes = {"engine": {"options": {"api": api}}, "workload": chats(tmp_path)}
        trial, requests = only(attached_run(tmp_path, fake, "llama_cpp", **changes))
        assert all("messages" in body for body in fake.bodies)
        answers = {(request.outcome, request.token_source, request.output_tokens) for request in requests}
        assert answers == {(Outcome.OK, TokenSource.CHUNKS, 4)}
        warned = {finding.code for finding in trial.record.warnings}
        assert not warned & {FindingCode.INPUT_LENGTH, FindingCode.OUTPUT_LENGTH}

    def test_a_prompt_that_it_counts_differently_is_a_warning(self, tmp_path: Path) -> None:
        """For example, it may put a token before every prompt."""
        count = by_tokenizer(tokenizer(tmp_path))
        fake = FakeLlamaServer(PACE, count=lambda prompt: count(prompt) + 1, flags=defaults(*SLOTS))
        trial, _ = only(attached_run(tmp_path, fake, "llama_cpp"))
        (finding,) = [warning for warning in trial.record.warnings if warning.code is FindingCode.INPUT_LENGTH]
        assert (finding.parameters["engine_tokens"], finding.parameters["planned_tokens"]) == (9, 8)


class TestLlamaServersBiases:
    def test_the_pieces_of_a_character_are_tokens_and_come_together(self, tmp_path: Path) -> None:
        """The event carries the id of the last token only."""
        tokens = tuple(Token(100 + i, text) for i, text in enumerate((" a", "", "", "ü", " b")))
        fake = FakeLlamaServer(ScriptedAnswer(answer=tokens, ttft_s=0.01, gap_s=0.002), flags=defaults(*SLOTS))
        trial, requests = only(attached_run(tmp_path, fake, "llama_cpp"))
        assert {(request.outcome, request.output_tokens, request.total_chunk_tokens) for request in requests} == {
            (Outcome.OK, 5, 5)
        }
        assert {len(request.chunk_tokens) for request in requests} == {3}
        assert TokenSource.IDS not in {request.token_source for request in requests}
        assert FindingCode.OUTPUT_LENGTH not in {finding.code for finding in trial.record.warnings}

    def test_accepted_drafts_are_single_tokens_in_bursts(self, tmp_path: Path) -> None:
        """The pace per token stays the same."""
        fake = FakeLlamaServer(Script(ttft_s=0.02, gap_s=0.01, group=5), flags=defaults(*SLOTS))
        workload = {"name": "random", "options": {"input_tokens": 8, "output_tokens": 20}}
        _, requests = only(attached_run(tmp_path, fake, "llama_cpp", workload=workload))
        assert {tuple(request.chunk_tokens) for request in requests} == {(1,) * 20}
        for request in requests:
            pace_s = one_request.tpot_s(request)
            assert pace_s is not None
            later = sum(t_ns > request.chunk_ns[0] for t_ns in request.chunk_ns)
            assert 15 <= later <= 19, "how many of the first burst come in the first read is up to the network"
            assert pace_s == pytest.approx((request.chunk_ns[-1] - request.chunk_ns[0]) / 1e9 / later)
            assert pace_s > 0.01 * 15 / later * 0.9, "the last burst begins three bursts after the first"

    def test_progress_is_not_the_first_token(self, tmp_path: Path) -> None:
        fake = FakeLlamaServer(Script(ttft_s=0.1), ["progress"], flags=defaults(*SLOTS))
        for api in ("native", "openai"):
            run = attached_run(tmp_path / api, fake, "llama_cpp", engine={"options": {"api": api}})
            _, requests = only(run)
            assert {request.total_chunk_tokens for request in requests} == {5}
            assert all((request.chunk_ns[0] - (request.sent_ns or 0)) / 1e9 > 0.09 for request in requests)

    def test_a_context_that_is_full_fails_the_request_though_the_status_is_200(self, tmp_path: Path) -> None:
        small = defaults("-c", "40", "-np", "4")  # ten tokens a slot, of which the prompt takes eight
        trial, requests = only(attached_run(tmp_path, FakeLlamaServer(PACE, flags=small), "llama_cpp"))
        assert trial.record.verdict is Verdict.INVALID
        assert {(request.status, request.outcome, request.error) for request in requests} == {
            (200, Outcome.STREAM_ERROR, "the slot's context is full, so the answer was cut off; raise max_model_len")
        }

    def test_on_the_openai_routes_only_the_length_shows_it_and_is_a_warning(self, tmp_path: Path) -> None:
        small = defaults("-c", "40", "-np", "4")
        trial, requests = only(attached_run(tmp_path, FakeLlamaServer(PACE, flags=small), "llama_cpp", engine=OPENAI))
        assert {(request.outcome, request.output_tokens) for request in requests} == {(Outcome.OK, 2)}
        (finding,) = [warning for warning in trial.record.warnings if warning.code is FindingCode.OUTPUT_LENGTH]
        assert (finding.parameters["output_tokens"], finding.parameters["asked_tokens"]) == (2, 5)

    def test_a_prompt_that_is_too_long_is_refused_in_its_words(self, tmp_path: Path) -> None:
        small = defaults("-c", "32", "-np", "4")
        _, requests = only(attached_run(tmp_path, FakeLlamaServer(PACE, flags=small), "llama_cpp"))
        words = "request (8 tokens) exceeds the available context size (8 tokens), try increasing it"
        assert {(request.outcome, request.error) for request in requests} == {
            (Outcome.HTTP_ERROR, f"HTTP 400: {words}")
        }

    @pytest.mark.parametrize("api", ["native", "openai"])
    def test_a_late_error_comes_without_done_and_fails_the_request(self, tmp_path: Path, api: str) -> None:
        fake = FakeLlamaServer(PACE, ["late-error"], flags=defaults(*SLOTS))
        trial, requests = only(attached_run(tmp_path, fake, "llama_cpp", engine={"options": {"api": api}}))
        assert trial.record.verdict is Verdict.INVALID
        assert {(request.outcome, request.error) for request in requests} == {(Outcome.STREAM_ERROR, "Compute error.")}

    def test_what_the_cache_had_is_counted_and_can_be_refused(self, tmp_path: Path) -> None:
        """Its cache is on by default, and each slot has its own."""
        cached_tokens = {}
        for wanted in (None, False):
            options = {} if wanted is None else {"cache_prompt": wanted}
            trial = {**SHORT, "cache": "warm"}
            fake = FakeLlamaServer(PACE, flags=defaults(*SLOTS))
            side = {"options": options}
            run = attached_run(tmp_path / str(wanted), fake, "llama_cpp", engine=side, trial=trial)
            cached_tokens[wanted] = {request.cached_tokens for request in only(run)[1]}
        assert cached_tokens[None] == {7}, "all but the last token of each prompt"
        assert cached_tokens[False] == {0}

    def test_requests_beyond_its_slots_wait_and_all_are_answered(self, tmp_path: Path) -> None:
        fake = FakeLlamaServer(PACE, flags=defaults("-c", "16384", "-np", "2"))
        _, requests = only(attached_run(tmp_path, fake, "llama_cpp", loads=[{"concurrency": 6}]))
        assert {request.outcome for request in requests} == {Outcome.OK}
        assert (fake.most_running, fake.running) == (2, 0)

    def test_a_request_that_is_given_up_frees_its_slot(self, tmp_path: Path) -> None:
        fake = FakeLlamaServer(Script(ttft_s=0.01, gap_s=0.4), flags=defaults("-c", "8192", "-np", "1"))
        limits = {**SHORT, "timeout_s": 0.3, "max_requests": 3}
        run = attached_run(tmp_path, fake, "llama_cpp", trial=limits, loads=[{"concurrency": 1}])
        trial, requests = only(run)
        assert {request.outcome for request in requests} == {Outcome.TIMEOUT}
        assert all(request.total_chunk_tokens == 1 for request in requests), "each got the slot in its turn"
        assert fake.dropped == len(trial.requests)
        assert fake.running == 0


def environment(folder: Path, package: str, version: str, words: int, fake: str) -> str:
    """A venv whose interpreter drops its first arguments and runs a fake."""
    info = folder / f"lib/python3.11/site-packages/{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    python = folder / "bin/python"
    python.parent.mkdir()
    call = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m tests.engines.fakes.{fake}"
    python.write_text(f'#!/bin/sh\nshift {words}\n{call} "$@"\n')
    python.chmod(0o755)
    return str(folder)


def launched_run(tmp_path: Path, adapter: str, **changes: Any) -> results.Run:
    """The adapter starts the fake as it would start the package."""
    folder = tokenizer(tmp_path)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    gguf_head(folder / "model-bf16.gguf", 32)
    packages = {"llama_cpp": ("xllamacpp", "2026.1"), "llama_cpp_python": ("llama-cpp-python", "0.3.36")}
    venv = environment(tmp_path / "venv", *packages[adapter], 2, adapter)
    pace = {"FAKE_SCRIPT": '{"ttft_s":0.01,"gap_s":0.002}', **changes.pop("env", {})}
    engine = {"adapter": adapter, "environment": venv, "env": pace, **changes.pop("engine", {})}
    return asyncio.run(measured_run(tmp_path, engine, model={"path": str(folder)}, **changes))


def listening(port: int) -> bool:
    return any(
        connection.laddr.port == port and connection.status == "LISTEN" for connection in psutil.net_connections("tcp")
    )


class TestLaunched:
    def test_it_is_started_waited_for_described_and_gone(self, tmp_path: Path) -> None:
        """Its port opens before the model is loaded; until then it answers 503."""
        port = pick_port()
        spec = {"max_model_len": 512, "max_num_seqs": 8, "dtype": "bfloat16", "enable_prefix_caching": False}
        run = launched_run(tmp_path, "llama_cpp", spec=spec, engine={"port": port}, env={"FAKE_FAULTS": "loading"})
        trial, requests = only(run)
        assert run.status is RunStatus.COMPLETE
        assert {(request.outcome, request.cached_tokens, request.prompt_tokens) for request in requests} == {
            (Outcome.OK, 0, 8)
        }
        described = trial.record.engine_description
        assert described is not None
        assert (described.version, described.details["build_info"]) == ("2026.1", "b11434-fake")
        assert (described.details["total_slots"], described.details["n_ctx_slot"]) == (8, 512)
        assert described.details["model_path"].endswith("model-bf16.gguf")
        assert "--no-cache-prompt" in described.argv
        assert any("knows AVX2" in note for note in described.notes)
        assert not listening(port)

    def test_contexts_that_were_made_shorter_fail_it_by_name(self, tmp_path: Path) -> None:
        run = launched_run(tmp_path, "llama_cpp", spec={"max_model_len": 512}, env={"FAKE_FAULTS": "fits"})
        assert run.status is RunStatus.FAILED
        assert "llama-server made max_model_len 256 where 512 was asked for" in (run.manifest.failure or "")

    def test_a_flag_that_it_does_not_know_fails_it_with_its_own_words(self, tmp_path: Path) -> None:
        run = launched_run(tmp_path, "llama_cpp", engine={"args": ["--draft-max", "3"]})
        assert run.status is RunStatus.FAILED
        assert "unrecognized arguments: --draft-max 3" in (run.manifest.failure or "")


class TestLlamaCppPython:
    def test_requests_wait_for_each_other_and_none_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The variable PORT would override its flag."""
        monkeypatch.setenv("PORT", str(pick_port()))
        run = launched_run(tmp_path, "llama_cpp_python", engine={"port": pick_port()})
        trial, requests = only(run)
        assert run.status is RunStatus.COMPLETE
        assert {(request.outcome, request.finish_reason) for request in requests} == {(Outcome.OK, "length")}
        described = trial.record.engine_description
        assert described is not None
        assert described.version == "0.3.36"
        assert any("one request at a time" in note for note in described.notes)

    def test_a_server_that_kills_old_requests_for_new_ones_fails_the_trial(self, tmp_path: Path) -> None:
        """This is the server's default; the adapter launches it otherwise."""
        flags = python_arguments().parse_args(["--model", "m"])
        trial, requests = only(attached_run(tmp_path, FakeLlamaCppPython(PACE, flags=flags), "llama_cpp_python"))
        assert trial.record.verdict is Verdict.INVALID
        assert Outcome.STREAM_ERROR in {request.outcome for request in requests}

    def test_its_tokens_are_counted_by_the_tokenizer_and_only_one_request_runs(self, tmp_path: Path) -> None:
        tokens = tuple(Token(100 + i, text) for i, text in enumerate(("a", "", "☃", "b")))
        fake = FakeLlamaCppPython(ScriptedAnswer(answer=tokens, ttft_s=0.005, gap_s=0.002))
        # One request at a time, so a pause of this machine must not fill the window.
        trial, requests = only(attached_run(tmp_path, fake, "llama_cpp_python", trial={**SHORT, "duration_s": 1.5}))
        assert {(request.outcome, request.token_source) for request in requests} == {
            (Outcome.OK, TokenSource.TOKENIZER)
        }
        assert {request.output_tokens for request in requests} == {5}, (
            "☃ is three tokens of a tokenizer of bytes, in one chunk"
        )
        assert fake.most_running == 1
        assert {request.prompt_tokens for request in requests} == {None}
        assert FindingCode.OUTPUT_LENGTH not in {finding.code for finding in trial.record.warnings}

    def test_a_prompt_that_is_too_long_is_an_answer_cut_off(self, tmp_path: Path) -> None:
        """The server answers HTTP 200 and no event."""
        flags = python_arguments().parse_args(["--model", "m", "--n_ctx", "8", "--interrupt_requests", "false"])
        trial, requests = only(attached_run(tmp_path, FakeLlamaCppPython(PACE, flags=flags), "llama_cpp_python"))
        assert trial.record.verdict is Verdict.INVALID
        assert {(request.status, request.outcome) for request in requests} == {(200, Outcome.TRUNCATED)}
        assert {request.error for request in requests} == {"the stream ended without any event"}
