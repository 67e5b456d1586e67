"""Adapter of trtllm-serve: command line, configuration file, metrics and notes."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, Setup, Speculation, attached
from bakeoff.engines.adapters.tensorrt_llm import REQUEST_METRICS, TensorRtLlmEngine, TensorRtLlmOptions
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.engines.errors import BadOption, ModelNotFound, NotInstalled
from bakeoff.engines.metrics import DrainedIterations
from bakeoff.engines.metrics.readers import reader_of
from tests.engines.fakes.stage import running
from tests.engines.fakes.tensorrt_llm import TensorRtLlmFake

MODEL = Model("smol", "/models/smol")
PROGRAM = "/opt/trtllm-serve"
FIXED = (PROGRAM, "/models/smol", "--host", "127.0.0.1", "--port", "9000", "--backend", "pytorch")
FILE = ("--config", "{file:config.yml}")
HERE = Deployment(program=PROGRAM)
THERE = Deployment(url="http://127.0.0.1:8000/v1")


def made(spec: EngineSpec | None = None, deployment: Deployment = HERE, **options: Any) -> TensorRtLlmEngine:
    own = msgspec.convert(options, TensorRtLlmOptions)
    return TensorRtLlmEngine(Setup(MODEL, spec or EngineSpec(), own, deployment))


def launch(spec: EngineSpec | None = None, deployment: Deployment = HERE, **options: Any) -> Launch:
    command = made(spec, deployment, **options).launch(9000)
    assert command is not None
    return command


def arguments_of(spec: EngineSpec | None = None, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The flags and the configuration file without the parts that every start has."""
    command = launch(spec, **options)
    assert command.argv[: len(FIXED)] == FIXED
    config = json.loads(command.files["config.yml"])
    assert config.pop("enable_iter_perf_stats") is True
    argv = command.argv[len(FIXED) :]
    assert argv[:2] == FILE
    return argv[2:], config


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "flags"),
        [
            ({}, ()),
            ({"dtype": "auto"}, ()),
            ({"max_model_len": 2048}, ("--max_seq_len", "2048")),
            ({"max_num_seqs": 8}, ("--max_batch_size", "8")),
            ({"max_num_batched_tokens": 4096}, ("--max_num_tokens", "4096")),
            ({"tensor_parallel_size": 2}, ("--tp_size", "2")),
            ({"pipeline_parallel_size": 2}, ("--pp_size", "2")),
            ({"memory_fraction": 0.8}, ("--kv_cache_free_gpu_memory_fraction", "0.8")),
            ({"enable_chunked_prefill": True}, ("--enable_chunked_prefill",)),
            ({"enable_chunked_prefill": False}, ()),
        ],
    )
    def test_some_are_flags(self, setting: dict[str, Any], flags: tuple[str, ...]) -> None:
        assert arguments_of(EngineSpec(**setting)) == (flags, {})

    @pytest.mark.parametrize(
        ("setting", "config"),
        [
            ({"kv_cache_dtype": "fp8"}, {"kv_cache_config": {"dtype": "fp8"}}),
            ({"enable_prefix_caching": False}, {"kv_cache_config": {"enable_block_reuse": False}}),
            (
                {"enable_prefix_caching": True, "kv_cache_dtype": "auto"},
                {"kv_cache_config": {"enable_block_reuse": True, "dtype": "auto"}},
            ),
        ],
    )
    def test_others_stand_in_the_file(self, setting: dict[str, Any], config: dict[str, Any]) -> None:
        assert arguments_of(EngineSpec(**setting)) == ((), config)

    @pytest.mark.parametrize(
        ("method", "model", "config"),
        [
            ("ngram", None, {"decoding_type": "NGram"}),
            ("draft", "/models/d", {"decoding_type": "DraftTarget", "speculative_model": "/models/d"}),
            ("eagle3", "/models/e", {"decoding_type": "Eagle3", "speculative_model": "/models/e"}),
            ("mtp", None, {"decoding_type": "MTP", "num_nextn_predict_layers": 3}),
        ],
    )
    def test_speculation_has_its_own_names(self, method: str, model: str | None, config: dict[str, Any]) -> None:
        spec = EngineSpec(speculation=Speculation(method, 3, model))
        assert arguments_of(spec) == ((), {"speculative_config": {**config, "max_draft_len": 3}})

    @pytest.mark.parametrize(
        ("speculation", "reason"),
        [
            (Speculation("medusa", 3), "it knows the methods ngram, draft, eagle3, mtp, not 'medusa'"),
            (Speculation("draft", 3), "draft needs the folder of a draft model, in speculation.model"),
            (Speculation("ngram", 3, "/models/d"), "ngram takes no draft model"),
        ],
    )
    def test_speculation_that_it_cannot_do_is_refused(self, speculation: Speculation, reason: str) -> None:
        with pytest.raises(BadOption) as caught:
            made(EngineSpec(speculation=speculation))
        wanted = f"engine 'tensorrt_llm' cannot be told speculation: {reason}; leave it out for this engine"
        assert str(caught.value) == wanted

    @pytest.mark.parametrize(
        ("setting", "reason"),
        [
            ({"dtype": "bfloat16"}, "dtype: the checkpoint sets it; use auto, not 'bfloat16'"),
            ({"quantization": "fp8"}, "quantization: the checkpoint sets it"),
            ({"seed": 1}, "seed: it has no engine-wide seed"),
            ({"kv_cache_dtype": "q8_0"}, "kv_cache_dtype: it knows auto, fp8, nvfp4, not 'q8_0'"),
        ],
    )
    def test_unsupported_settings_are_refused(self, setting: dict[str, Any], reason: str) -> None:
        with pytest.raises(BadOption, match=reason):
            made(EngineSpec(**setting))

    def test_every_shared_setting_has_a_spelling_or_a_reason(self) -> None:
        assert set(TensorRtLlmEngine.spellings) == set(EngineSpec.__struct_fields__)


class TestFile:
    def test_more_keys_nest_and_join_those_that_are_there(self) -> None:
        spec = EngineSpec(enable_prefix_caching=False, speculation=Speculation("ngram", 4))
        config = {
            "stream_interval": 2,
            "kv_cache_config.tokens_per_block": 64,
            "cuda_graph_config": {"enable_padding": True},
            "speculative_config": {"max_matching_ngram_size": 3},
        }
        assert arguments_of(spec, config=config)[1] == {
            "stream_interval": 2,
            "kv_cache_config": {"enable_block_reuse": False, "tokens_per_block": 64},
            "cuda_graph_config": {"enable_padding": True},
            "speculative_config": {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3},
        }

    @pytest.mark.parametrize(
        ("spec", "config", "named"),
        [
            (EngineSpec(max_num_seqs=8), {"max_batch_size": 4}, "max_batch_size"),
            (EngineSpec(tensor_parallel_size=2), {"tensor_parallel_size": 2}, "tensor_parallel_size"),
            (EngineSpec(enable_chunked_prefill=True), {"enable_chunked_prefill": False}, "enable_chunked_prefill"),
            (
                EngineSpec(memory_fraction=0.8),
                {"kv_cache_config": {"free_gpu_memory_fraction": 0.7}},
                "kv_cache_config.free_gpu_memory_fraction",
            ),
            (EngineSpec(kv_cache_dtype="fp8"), {"kv_cache_config.dtype": "fp8"}, "kv_cache_config.dtype"),
            (EngineSpec(kv_cache_dtype="fp8"), {"kv_cache_config": 7}, "kv_cache_config"),
            (EngineSpec(), {"enable_iter_perf_stats": False}, "enable_iter_perf_stats"),
            (EngineSpec(), {"backend": "tensorrt"}, "backend"),
            (EngineSpec(), {"a": {"b": 1}, "a.b.c": 2}, "a.b.c"),
        ],
    )
    def test_nothing_is_said_twice(self, spec: EngineSpec, config: dict[str, Any], named: str) -> None:
        with pytest.raises(BadOption) as caught:
            made(spec, config=config)
        wanted = f"engine 'tensorrt_llm': config.{named} is set elsewhere, too; set it once"
        assert str(caught.value) == wanted

    def test_a_flag_among_the_raw_words_counts_too(self) -> None:
        deployment = Deployment(program=PROGRAM, args=["--max_batch_size=8"])
        with pytest.raises(BadOption, match=r"config\.max_batch_size is set elsewhere"):
            made(deployment=deployment, config={"max_batch_size": 4})
        with pytest.raises(
            BadOption,
            match="enable_iter_perf_stats needs a configuration file besides that of --config; use",
        ):
            made(deployment=Deployment(program=PROGRAM, args=["--config", "own.yml"]))

    def test_it_is_yaml(self) -> None:
        yaml = pytest.importorskip("yaml")
        text = launch(EngineSpec(speculation=Speculation("draft", 3, "/models/ä: b #")), config={"x": None}).files
        assert yaml.safe_load(text["config.yml"]) == json.loads(text["config.yml"])

    def test_without_a_key_there_is_no_file(self) -> None:
        command = launch(enable_iter_perf_stats=False)
        assert (command.argv, command.files) == (FIXED, {})


class TestPlaces:
    def test_the_console_script_of_its_environment_is_run(self, tmp_path: Path) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/python").touch()
        (tmp_path / "bin/trtllm-serve").touch()
        deployment = Deployment(environment=str(tmp_path))
        assert launch(deployment=deployment).argv[0] == str(tmp_path / "bin/trtllm-serve")
        (tmp_path / "bin/trtllm-serve").unlink()
        with pytest.raises(NotInstalled, match="run: bakeoff engines install tensorrt-llm"):
            launch(deployment=deployment)

    def test_where_it_is_not_installed_it_says_how(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        with pytest.raises(NotInstalled) as caught:
            launch(deployment=Deployment())
        assert str(caught.value) == "tensorrt-llm is not installed; run: bakeoff engines install tensorrt-llm"

    def test_a_container_sees_the_file(self) -> None:
        container = Container("tensorrt-llm:1.2.1", gpus="all", args=["--shm-size", "1g"])
        command = launch(EngineSpec(max_num_seqs=8), Deployment(container=container))
        mounted = command.argv.index("{file:config.yml}:/bakeoff/config.yml:ro")
        image = command.argv.index(container.image)
        assert command.argv[mounted - 1] == "--volume"
        assert mounted < image
        assert command.argv[image + 1 :] == (
            "trtllm-serve", "/models/smol", "--host", "0.0.0.0", "--port", "8000", "--backend", "pytorch",
            "--config", "/bakeoff/config.yml", "--max_batch_size", "8",
        )  # fmt: skip
        assert list(command.files) == ["config.yml"]
        quiet = launch(deployment=Deployment(container=container), enable_iter_perf_stats=False)
        assert not any("config" in word for word in quiet.argv)

    def test_over_ssh_only_flags_are_possible(self) -> None:
        deployment = Deployment(ssh=Ssh("gpu", model_path="/data/smol"))
        command = launch(EngineSpec(max_num_seqs=8), deployment)
        assert command.files == {}
        port = command.argv[command.argv.index("-L") + 1].rpartition(":")[2]
        remote_command = f"trtllm-serve /data/smol --host 127.0.0.1 --port {port} --backend pytorch --max_batch_size 8"
        assert command.argv[-1].endswith(remote_command)
        with pytest.raises(BadOption) as caught:
            made(EngineSpec(kv_cache_dtype="fp8"), deployment)
        wanted = "engine 'tensorrt_llm': kv_cache_config.dtype needs a configuration file, which is not copied over ssh"
        assert str(caught.value) == f"{wanted}; leave it out, or name a file on that host in args: --config PATH"

    def test_at_an_address_nothing_is_started(self) -> None:
        engine = made(deployment=THERE)
        assert (engine.url, engine.launch(9000)) == ("http://127.0.0.1:8000", None)

    def test_without_a_model_it_says_what_is_missing(self) -> None:
        engine = TensorRtLlmEngine(Setup(Model("smol"), options=TensorRtLlmOptions(), deployment=HERE))
        with pytest.raises(ModelNotFound, match=r"needs a model's files; set path in \[model\]"):
            engine.launch(9000)


class TestObservation:
    def test_iterations_are_read_where_it_is_started_here(self) -> None:
        assert made().metrics == DrainedIterations()
        assert made(enable_iter_perf_stats=False).metrics is None

    def test_at_an_address_they_are_left_to_whoever_reads_them_unless_asked_for(self) -> None:
        assert made(deployment=THERE).metrics is None
        assert made(deployment=THERE, enable_iter_perf_stats=True).metrics == DrainedIterations()
        assert made(deployment=Deployment(ssh=Ssh("gpu"))).metrics is None, "there it takes a file"

    def test_only_one_of_the_two_pages_that_empty_one_queue_is_read(self) -> None:
        engine = made(return_perf_metrics=True)
        assert engine.metrics == REQUEST_METRICS
        assert REQUEST_METRICS.path == "/prometheus/metrics"
        config = {"enable_iter_perf_stats": True, "return_perf_metrics": True}
        command = engine.launch(9000)
        assert command is not None
        assert json.loads(command.files["config.yml"]) == config

    def test_its_page_is_read_into_our_names(self) -> None:
        labels = '{engine_type="x",model_name="m"}'
        page = (
            f"trtllm_num_requests_running{labels} 3\ntrtllm_num_requests_waiting{labels} 2\n"
            f"trtllm_kv_cache_utilization{labels} 0.5\ntrtllm_prompt_tokens_total{labels} 100\n"
            f"trtllm_prompt_cached_tokens_total{labels} 40\ntrtllm_generation_tokens_total{labels} 60\n"
            f"trtllm_time_to_first_token_seconds_sum{labels} 1.5\ntrtllm_time_to_first_token_seconds_count{labels} 3\n"
        )
        frame = reader_of(REQUEST_METRICS).read(page.encode())
        assert frame == {
            "running": 3, "waiting": 2, "kv_usage_share": 0.5, "prompt_tokens_total": 100,
            "prefix_queries_tokens_total": 100, "prefix_hits_tokens_total": 40, "output_tokens_total": 60,
            "ttft_s_sum": 1.5, "ttft_s_count": 3,
        }  # fmt: skip

    def test_it_is_described_without_taking_its_statistics_or_generating(self) -> None:
        fake = TensorRtLlmFake(enable_iter_perf_stats=True)

        async def ask(engine: TensorRtLlmEngine) -> dict[str, Any]:
            async with running(fake) as url:
                assert not await engine.reset_cache(attached(url)), "it has no call for that"
                return await engine.describe(attached(url))

        assert asyncio.run(ask(made(EngineSpec(kv_cache_dtype="fp8")))) == {
            "version": "1.2.1",
            "server_info": {"disaggregated_params": None},
            "models": ["m"],
            "config": {"kv_cache_config": {"dtype": "fp8"}, "enable_iter_perf_stats": True},
        }
        assert "config" not in asyncio.run(ask(made(deployment=THERE)))
        assert (fake.reads, fake.health_generations) == (0, 0)
        assert launch().ready_path == "/health", "the other check generates"

    def test_a_server_that_tells_nothing_is_described_by_nothing(self) -> None:
        assert asyncio.run(made(deployment=THERE).describe(attached("http://127.0.0.1:9"))) == {}


class TestNotes:
    def test_notes_mention_block_reuse_unless_it_is_off(self) -> None:
        note = "block reuse is on and no call empties it: only prompts with new text keep a trial cold"
        assert note in made().notes
        assert note in made(EngineSpec(enable_prefix_caching=True)).notes
        assert note not in made(EngineSpec(enable_prefix_caching=False)).notes

    def test_notes_mention_chunked_prefill_unless_it_is_set(self) -> None:
        note = "chunked prefill is off unless enable_chunked_prefill says so; vLLM has it on"
        assert note in made().notes
        assert note not in made(EngineSpec(enable_chunked_prefill=True)).notes
        assert note not in made(EngineSpec(enable_chunked_prefill=False)).notes

    def test_notes_explain_memory_fraction(self) -> None:
        note = "memory_fraction is of the GPU memory that is free after loading the model; vLLM's is of the total"
        assert note in made(EngineSpec(memory_fraction=0.8)).notes
        assert note not in made().notes

    def test_notes_mention_the_cost_of_statistics(self) -> None:
        note = "it collects statistics of every iteration, which costs work; only one reader gets them"
        assert note in made().notes
        assert note not in made(enable_iter_perf_stats=False).notes

    def test_notes_mention_late_cancellation(self) -> None:
        assert "it looks once a second whether a client has hung up, and decodes on until then" in made().notes

    def test_notes_on_a_running_server(self) -> None:
        first = made(deployment=THERE).notes[0]
        assert first.startswith("it runs already: block reuse, chunked prefill and memory fraction are as it was")
