"""trtllm-serve's fake through the whole harness, at an address and as a process, with what biases a benchmark of it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil

from bakeoff import results
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, Phase, RequestRecord, RunStatus, TokenSource, Verdict
from tests.engines.fakes.answers import by_tokenizer
from tests.engines.fakes.stage import Script, running
from tests.engines.fakes.tensorrt_llm import TensorRtLlmFake
from tests.harness.fake_runs import measured_run, only, tokenizer
from tests.results import one_request

PACE = Script(ttft_s=0.02, gap_s=0.004)
ROOT = Path(__file__).parents[3]
SERVE = "from tests.engines.fakes.tensorrt_llm_serve import main; main(sys.argv[1:])"


def fake_of(tmp_path: Path, script: Script = PACE, *faults: str, **settings: Any) -> TensorRtLlmFake:
    return TensorRtLlmFake(script, faults, count=by_tokenizer(tokenizer(tmp_path)), **settings)


def attached(
    tmp_path: Path, fake: TensorRtLlmFake, options: dict[str, Any] | None = None, **changes: Any
) -> results.Run:
    async def scene() -> results.Run:
        async with running(fake) as url:
            side = {"adapter": "tensorrt_llm", "url": url, "options": options or {}}
            return await measured_run(tmp_path, side, **changes)

    return asyncio.run(scene())


def program(tmp_path: Path) -> str:
    """A program that replaces ``trtllm-serve``."""
    place = tmp_path / "trtllm-serve"
    place.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n{SERVE}\n", encoding="utf-8")
    place.chmod(0o755)
    return str(place)


def launched(tmp_path: Path, spec: dict[str, Any], **side: Any) -> results.Run:
    engine = {"adapter": "tensorrt_llm", "program": program(tmp_path), "spec": spec, **side}
    folder = tokenizer(tmp_path)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    model = {"path": str(folder)}
    return asyncio.run(measured_run(tmp_path, engine, model=model, samples=True))


def printed(run: results.Run) -> list[str]:
    (log,) = (run.path / "engines").glob("*.log")
    return log.read_text(encoding="utf-8").splitlines()


def frames(run: results.Run) -> list[dict[str, Any]]:
    """The server's own figures, as the sampler stored them."""
    return [sample.values for trial in run.finished for sample in trial.telemetry if sample.source == "server"]


def ttfts_s(requests: list[RequestRecord]) -> list[float]:
    return [ttft_s for request in requests if (ttft_s := one_request.ttft_s(request)) is not None]


class TestAttached:
    def test_every_answer_is_whole_and_of_the_wanted_length(self, tmp_path: Path) -> None:
        """Bias 7: it refuses options that it does not know, and refused none.

        Bias 4: statistics that another client may be reading are left alone.
        """
        fake = fake_of(tmp_path, Script(ttft_s=0.02, gap_s=0.004, natural_length=2), enable_iter_perf_stats=True)
        run = attached(tmp_path, fake)
        trial, requests = only(run)
        assert (trial.record.verdict, trial.record.warnings) == (Verdict.VALID, [])
        assert {request.outcome for request in requests} == {Outcome.OK}
        assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(8, 5)}
        assert {request.finish_reason for request in requests} == {"length"}
        assert {request.token_source for request in requests} == {TokenSource.CHUNKS}
        assert (trial.metrics["itl_p50_s"].value or 0) > 0.0035
        assert (trial.metrics["ttft_p50_s"].value or 0) > 0.02
        description = trial.record.engine_description
        assert (description.adapter, description.version) == ("tensorrt_llm", "1.2.1")
        assert description.details["models"] == ["m"]
        assert fake.health_generations == 0, "a check that generates is no check during a run"
        assert (fake.reads, frames(run)) == (0, [])

    def test_ids_count_the_tokens_of_chunks_that_hold_several(self, tmp_path: Path) -> None:
        fake = fake_of(tmp_path, Script(ttft_s=0.01, gap_s=0.002, group=2))
        _, requests = only(attached(tmp_path, fake, {"token_ids": True}))
        assert {request.outcome for request in requests} == {Outcome.OK}
        assert {request.token_source for request in requests} == {TokenSource.IDS}
        assert {tuple(request.chunk_tokens) for request in requests} == {(2, 2, 1)}
        assert {request.text for request in requests} == {""}

    def test_chats_begin_with_a_role_that_is_no_token(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.jsonl"
        lines = ({"messages": [{"role": "user", "content": f"Tell me about {i}"}], "max_tokens": 4} for i in range(300))
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        fake = fake_of(tmp_path)
        _, requests = only(attached(tmp_path, fake, workload={"name": "trace", "options": {"path": str(trace)}}))
        assert {request.outcome for request in requests} == {Outcome.OK}
        assert all("messages" in body for body in fake.bodies)
        assert {(request.token_source, request.output_tokens) for request in requests} == {(TokenSource.CHUNKS, 4)}
        assert {len(request.empty_chunk_ns) for request in requests} == {1}


class TestBiases:
    def test_trials_find_nothing_in_the_cache_and_hang_up_on_nothing(self, tmp_path: Path) -> None:
        """Bias 1: reuse is on and no call empties it, and still no trial finds the prompts of an earlier one.

        Bias 5: a request that was dropped would be decoded on for a second beside those of the next trial.
        """
        fake = fake_of(tmp_path)
        workload = {"name": "random", "options": {"input_tokens": 80, "output_tokens": 2}}
        loads = [{"concurrency": 3}, {"rate_per_s": 40.0, "arrival": "constant"}]
        run = attached(tmp_path, fake, workload=workload, loads=loads)
        requests = [request for trial in run.finished for request in trial.requests]
        # A trial that a pause of the machine spoilt is measured again.
        assert list(dict.fromkeys(trial.record.load.concurrency for trial in run.finished)) == [3, None]
        assert len({body["prompt"] for body in fake.bodies}) == len(fake.bodies) == len(requests)
        assert {request.cached_tokens for request in requests} == {0}
        assert (fake.open, fake.dropped) == (0, 0)
        for trial in run.finished:
            assert trial.record.traffic is not None
            assert not trial.record.traffic.cache_reset
            notes = trial.record.engine_description.notes
            assert notes[0].startswith("it runs already: block reuse")
            assert "it looks once a second whether a client has hung up, and decodes on until then" in notes

    def test_its_iterations_are_read_by_the_sampler_alone_and_become_frames(self, tmp_path: Path) -> None:
        """Bias 4: each can be read only once, so another reader would take them; all of them arrived."""
        fake = fake_of(tmp_path, Script(ttft_s=0.02, gap_s=0.004, group=2), enable_iter_perf_stats=True)
        run = attached(tmp_path, fake, {"enable_iter_perf_stats": True}, samples=True)
        iterations = frames(run)
        assert fake.reads == len(iterations) > 2
        made = [frame for frame in iterations if "drafted_tokens_total" in frame]
        assert made[-1]["mark"] == "after"
        requests = [request for trial in run.finished for request in trial.requests]
        assert made[-1]["drafted_tokens_total"] == sum(len(request.chunk_ns) for request in requests)
        assert all(0 <= frame["kv_usage_share"] <= 1 for frame in made if "kv_usage_share" in frame)

    def test_a_stream_that_breaks_off_without_a_word_voids_the_trial(self, tmp_path: Path) -> None:
        """Bias 6: here behind the last token, so that only the counts and the end mark are missing."""
        trial, requests = only(attached(tmp_path, fake_of(tmp_path, PACE, "break-at-end")))
        assert trial.record.verdict is Verdict.INVALID
        assert {request.outcome for request in requests} == {Outcome.STREAM_ERROR}
        assert trial.record.findings[0].code is FindingCode.RAMP_FAILED

    def test_the_first_slow_iterations_fall_on_requests_that_never_count(self, tmp_path: Path) -> None:
        """Bias 8."""
        slow_s = 0.5
        trial, requests = only(attached(tmp_path, fake_of(tmp_path, slow_s=[slow_s, 0, 0, 0, 0])))
        ramp = [request for request in trial.requests if request.phase is Phase.RAMP]
        assert max(ttfts_s(ramp)) > slow_s
        assert max(ttfts_s(requests)) < slow_s


class TestLaunched:
    def test_it_is_configured_by_flags_and_a_file_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        """Biases 2 and 3: differences from other engines are noted, and the configuration is stored."""
        spec = {
            "max_num_seqs": 8,
            "max_model_len": 512,
            "tensor_parallel_size": 2,
            "memory_fraction": 0.5,
            "enable_prefix_caching": False,
            "kv_cache_dtype": "fp8",
            "speculation": {"method": "ngram", "num_tokens": 3},
        }
        run = launched(tmp_path, spec, options={"config": {"stream_interval": 1}})
        trial, requests = only(run)
        assert (run.status, trial.record.verdict) == (RunStatus.COMPLETE, Verdict.VALID)
        assert {request.output_tokens for request in requests} == {5}
        arguments, worker = printed(run)[:2]
        command = json.loads(arguments)
        flags = {name: command["flags"][name] for name in ("max_batch_size", "max_seq_len", "tp_size", "backend")}
        assert flags == {"max_batch_size": 8, "max_seq_len": 512, "tp_size": 2, "backend": "pytorch"}
        assert command["flags"]["kv_cache_free_gpu_memory_fraction"] == 0.5
        assert not command["flags"]["enable_chunked_prefill"]
        assert command["config"] == {
            "kv_cache_config": {"enable_block_reuse": False, "dtype": "fp8"},
            "speculative_config": {"decoding_type": "NGram", "max_draft_len": 3},
            "enable_iter_perf_stats": True,
            "stream_interval": 1,
        }
        description = trial.record.engine_description
        assert description.details["config"] == command["config"]
        assert "chunked prefill is off unless enable_chunked_prefill says so; vLLM has it on" in description.notes
        assert any(note.startswith("memory_fraction is of the GPU memory that is free") for note in description.notes)
        assert not any("block reuse" in note for note in description.notes)
        assert any("running" in frame for frame in frames(run)), "its iterations are read without being asked for"
        assert not psutil.pid_exists(int(worker.removeprefix("worker "))), "workers go with their server"

    def test_a_key_that_it_does_not_know_fails_the_run_with_its_own_words(self, tmp_path: Path) -> None:
        run = launched(tmp_path, {}, options={"config": {"no_such_key": 1}})
        assert run.status is RunStatus.FAILED
        assert run.manifest.failure is not None
        assert "Extra inputs are not permitted: ['no_such_key']" in run.manifest.failure
