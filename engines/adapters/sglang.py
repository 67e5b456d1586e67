"""Adapter of SGLang's server, by its OpenAI routes or its native ``/generate``.

Source: https://docs.sglang.ai and ``sglang/srt``. Its quirks:

- ``/health`` generates a token on each call by default; a launch turns that off. ``/ready`` does not exist in 0.5.17.
- Metrics and the report of cache hits are off by default, so a launch turns them on.
- Every tensor-parallel rank can export the same gauges, so only rank 0 is read.
- ``/flush_cache`` waits for running requests, and abandoned ones run on for seconds.
- The number of draft tokens includes the verified one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, SglangDialect, SglangNativeDialect
from bakeoff.engines.launcher import Server
from bakeoff.engines.metrics import Histogram, Prometheus, Series
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Cannot, Setting, Speculation, Spellings, flag, one_of, switch

_MODULE = ("-m", "sglang.launch_server")
_FLUSH_WAIT_S = 8
"""Seconds that ``/flush_cache`` waits for running requests, since abandoned ones run on for seconds."""
_DRAFT_ALGORITHMS = {"draft": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3"}
"""SGLang's names of methods with a draft model, by ours."""
_FIRST_RANK = {"tp_rank": "0"}
"""Labels of one rank, because every rank can export the same scheduler."""
_IDENTIFYING = (
    "version", "model_path", "dtype", "quantization", "kv_cache_dtype", "context_length", "max_req_input_len",
    "max_total_num_tokens", "max_running_requests", "max_prefill_tokens", "chunked_prefill_size", "page_size",
    "mem_fraction_static", "tp_size", "pp_size", "dp_size", "random_seed", "sampling_defaults", "schedule_policy",
    "schedule_conservativeness", "disable_radix_cache", "enable_mixed_chunk", "disable_overlap_schedule",
    "attention_backend", "sampling_backend", "cuda_graph_backend_decode", "cuda_graph_backend_prefill",
    "stream_interval", "incremental_streaming_output", "enable_deterministic_inference", "speculative_algorithm",
    "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "device", "frontend",
)  # fmt: skip
"""Resolved arguments that describe the engine in reports."""

METRICS = Prometheus(
    values={
        "running": (Series("sglang:num_running_reqs", _FIRST_RANK),),
        "waiting": (Series("sglang:num_queue_reqs", _FIRST_RANK),),
        "kv_usage_share": (Series("sglang:token_usage", _FIRST_RANK),),
        "preemptions_total": (Series("sglang:num_retracted_requests_total", _FIRST_RANK),),
        "prefix_queries_tokens_total": (Series("sglang:prompt_tokens_total"),),
        "prefix_hits_tokens_total": (Series("sglang:cached_tokens_total"),),
        "prompt_tokens_total": (Series("sglang:prompt_tokens_total"),),
        "output_tokens_total": (Series("sglang:generation_tokens_total"),),
    },
    histograms={
        "ttft_s": Histogram("sglang:time_to_first_token_seconds"),
        "itl_s": Histogram("sglang:inter_token_latency_seconds"),
        "e2e_s": Histogram("sglang:e2e_request_latency_seconds"),
        "queue_s": Histogram("sglang:queue_time_seconds", _FIRST_RANK),
        "prefill_s": Histogram("sglang:per_stage_req_latency_seconds", {**_FIRST_RANK, "stage": "prefill_forward"}),
    },
)


class SglangOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``sglang`` adapter; all but the first are flags of the same name."""

    api: Literal["openai", "native"] = "openai"
    """``openai``, or ``native``: completions by ``/generate``, whose events have token ids and repeat the answer."""
    page_size: int | None = None
    """Tokens per KV page."""
    max_total_tokens: int | None = None
    """Size of the KV cache in tokens."""
    max_prefill_tokens: int | None = None
    """Prompt tokens in one prefill batch."""
    max_queued_requests: int | None = None
    """Maximum number of waiting requests; further ones get HTTP 503."""
    schedule_policy: str | None = None
    """``fcfs``, ``lpm``…"""
    schedule_conservativeness: float | None = None
    """Above 1, the scheduler admits fewer requests and so retracts fewer."""
    enable_mixed_chunk: bool = False
    """Mix prefill and decode in one batch."""
    disable_overlap_schedule: bool = False
    """Do not schedule the next batch while the current one runs."""
    attention_backend: str | None = None
    """Attention backend, by SGLang's name."""
    sampling_backend: str | None = None
    """Sampling backend, by SGLang's name."""
    cuda_graph_backend_decode: str | None = None
    """``full``, ``breakable`` or ``disabled``."""
    cuda_graph_backend_prefill: str | None = None
    """``full``, ``breakable`` or ``disabled``."""
    stream_interval: int | None = None
    """Tokens per chunk of a stream."""
    incremental_streaming_output: bool = False
    """Send only new tokens in events of ``/generate``."""
    enable_deterministic_inference: bool = False
    """Make answers independent of the other requests in the batch."""
    device: str | None = None
    """``cuda``, ``cpu``…; the default is detected."""


def _speculative(speculation: Speculation) -> Setting | Cannot:
    """A chain of ``num_tokens`` drafts; SGLang's count of draft tokens includes the verified one."""
    width = ("--speculative-num-draft-tokens", str(speculation.num_tokens + 1))
    if speculation.method == "ngram":
        return Setting(("--speculative-algorithm", "NGRAM", *width))
    chain = ("--speculative-num-steps", str(speculation.num_tokens), "--speculative-eagle-topk", "1", *width)
    draft = ("--speculative-draft-model-path", speculation.model) if speculation.model else ()
    if speculation.method == "mtp":
        return Setting(("--speculative-algorithm", "NEXTN", *draft, *chain))
    if speculation.method not in _DRAFT_ALGORITHMS:
        return Cannot(f"it knows the methods ngram, mtp, {', '.join(_DRAFT_ALGORITHMS)}, not {speculation.method!r}")
    if not draft:
        return Cannot(f"{speculation.method} needs the folder of a draft model, in speculation.model")
    return Setting(("--speculative-algorithm", _DRAFT_ALGORITHMS[speculation.method], *draft, *chain))


def _offload(size_gib: float) -> Setting | Cannot:
    if size_gib != int(size_gib):
        return Cannot(f"it takes whole GiB, not {size_gib:g}")
    return Setting(("--cpu-offload-gb", str(int(size_gib))))


def _chunked(value: bool) -> Setting:
    """Chunked prefill is on by default, with a chunk size for the GPU; -1 disables it."""
    return Setting(() if value else ("--chunked-prefill-size", "-1"))


class SglangEngine(ServerEngine):
    """Starts ``python -m sglang.launch_server`` in SGLang's environment."""

    adapter = "sglang"
    owned_by = "sglang"
    Options = SglangOptions
    lists_model = True
    recipes = ("sglang",)
    module = _MODULE
    distributions = ("sglang",)
    programs = ("sglang",)
    needs_gpu = True
    spellings: ClassVar[Spellings] = {
        "dtype": one_of(("auto", "float32", "bfloat16", "float16"), flag("--dtype")),
        "quantization": flag("--quantization"),
        "kv_cache_dtype": flag("--kv-cache-dtype"),
        "max_model_len": flag("--context-length"),
        "max_num_seqs": flag("--max-running-requests"),
        "max_num_batched_tokens": flag("--chunked-prefill-size"),
        "tensor_parallel_size": flag("--tp-size"),
        "pipeline_parallel_size": flag("--pp-size"),
        "enable_prefix_caching": switch(None, "--disable-radix-cache"),
        "enable_chunked_prefill": _chunked,
        "speculation": _speculative,
        "seed": flag("--random-seed"),
        "memory_fraction": flag("--mem-fraction-static"),
        "cpu_offload_gb": _offload,
    }
    setting_places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dtype": ("dtype",),
        "quantization": ("quantization",),
        "kv_cache_dtype": ("kv_cache_dtype",),
        "max_model_len": ("context_length",),
        "max_num_seqs": ("max_running_requests",),
        "max_num_batched_tokens": ("chunked_prefill_size",),
        "tensor_parallel_size": ("tp_size",),
        "pipeline_parallel_size": ("pp_size",),
        "seed": ("random_seed",),
        "memory_fraction": ("mem_fraction_static",),
    }
    container_command = ("python3", *_MODULE)
    ready_timeout_s = 600.0
    metrics = METRICS

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The dialect of the option ``api``."""
        return SglangNativeDialect() if setup.options.api == "native" else SglangDialect()

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.notes = tuple(_notes(setup))

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Model, address and options; also enables metrics, and ignores the model's generation config."""
        where = ("--model-path", model, "--served-model-name", self.model_id, "--host", host, "--port", str(port))
        fixed = ("--enable-metrics", "--enable-cache-report", "--sampling-defaults", "openai")
        return (*where, *fixed, "--log-level-http", "warning", *_flags(self.setup.options))

    def environ(self) -> dict[str, str]:
        """Health checks do not generate tokens, whoever sends them."""
        return {**super().environ(), "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}

    async def reset_cache(self, server: Server) -> bool:
        """Empty the prefix cache once no request runs."""
        return await server.post(f"/flush_cache?timeout={_FLUSH_WAIT_S}")

    def settings_in(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """SGLang reports whether the prefix cache is off, not whether it is on."""
        settings = super().settings_in(description)
        off = description.get("disable_radix_cache")
        return settings if off is None else {**settings, "enable_prefix_caching": not off}

    async def describe(self, server: Server) -> dict[str, Any]:
        """Version and resolved arguments, as far as the server reports them."""
        info = await server.get_json("/server_info") or await server.get_json("/get_server_info") or {}
        description = {name: info[name] for name in _IDENTIFYING if info.get(name) is not None}
        if "version" not in description and (version := self.installed_version()):
            description["version"] = version
        return description


def _flags(options: SglangOptions) -> Sequence[str]:
    """Flags of the options that are set; switches have no negative form."""
    argv: list[str] = []
    for name, value in msgspec.to_builtins(options).items():
        if name == "api" or value is False:
            continue
        argv += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return argv


def _notes(setup: Setup) -> Iterator[str]:
    if setup.deployment.address is None:
        yield "SGLang runs with metrics and cache-hit reports on; both are off by default and cost a little"
    if setup.deployment.address is None and setup.spec.memory_fraction is not None:
        yield (
            "SGLang's memory_fraction covers weights and KV cache only, as a share of the memory that is free at its "
            "start; other engines include activations and graphs, as a share of the whole memory"
        )
    if setup.options.api == "native" and not setup.options.incremental_streaming_output:
        yield "SGLang's /generate repeats the whole answer in every event: bytes grow with the square of its length"
