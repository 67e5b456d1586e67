"""Adapter of the reference engine in this repository, measured over HTTP like any other server.

It speaks vLLM's dialect and has vLLM's metric names; see ``reference_engine/``.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from bakeoff.engines.adapters.vllm import METRICS
from bakeoff.engines.base import PrefixCacheFacts, Setup
from bakeoff.engines.dialects import Dialect, ReferenceDialect
from bakeoff.engines.errors import NotInstalled
from bakeoff.engines.launcher import Server
from bakeoff.engines.recording import ask_recorder
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Cannot, Setting, Speculation, Spellings, flag, one_of, option_argv, switch
from bakeoff.installation import how_to_install

_PACKAGES = ("torch", "safetensors", "prometheus_client", "gguf")
"""Packages of the extra ``engine``; checked without importing them, because torch takes seconds."""
_SERVE = ("-m", "bakeoff.reference_engine", "serve")


_METHODS = {"ngram": "does not take", "draft": "needs", "eagle3": "needs"}
"""Its methods of speculation, and whether each takes a draft model, in words."""
_NAMES = {"eagle3": "eagle"}
"""Methods that have another name in the engine."""


class ReferenceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``reference`` adapter: the flags of ``python -m bakeoff.reference_engine serve``."""

    device: str | None = None
    """``auto``, ``cpu`` or ``cuda``."""
    load_format: str | None = None
    """``auto``, or ``dummy``: random weights of the shapes in config.json."""
    generation_config: str | None = None
    """``auto``: requests without sampling parameters take the checkpoint's; ``none``: neutral ones."""
    block_size: int | None = None
    """Tokens per KV block."""
    num_blocks: int | None = None
    """Number of KV blocks in the pool."""
    kv_cache_memory_bytes: int | None = None
    """Size of the pool in bytes, instead of ``num_blocks``."""
    preemption: str | None = None
    """What happens to preempted requests: ``recompute`` or ``swap``."""
    swap_memory_bytes: int | None = None
    """Host memory for ``swap``."""
    priority_patience_steps: int | None = None
    """Scheduling steps of waiting time that one priority level is worth."""
    max_mixed_tokens: int | None = None
    """Tokens of a step that computes decodes and prompts, unless more prompts wait than two such steps hold."""
    max_queue: int | None = None
    """Maximum number of waiting requests; further ones get HTTP 429."""
    attention_window: int | None = None
    """Sliding attention window of every layer, in tokens."""
    attention_sinks: int | None = None
    """First tokens that remain visible outside the window."""
    cuda_graphs: bool | None = None
    """Whether decode steps on CUDA are captured as graphs at the start and then replayed."""
    batch_invariant: bool | None = None
    """Whether a request on CUDA gets the same tokens alone and in any batch."""
    overlap: bool | None = None
    """Whether a step on CUDA is launched before the one in flight is collected."""
    adaptive_speculation: bool | None = None
    """Whether acceptance and batch size decide how much of ``speculation.num_tokens`` is drafted."""
    threads: int | None = None
    """CPU threads per process; the default divides the cores among the processes."""
    data_parallel_size: int | None = None
    """Number of replicas of the model behind one port."""
    context_parallel_size: int | None = None
    """Processes that each have the whole model and share out the tokens of long prompts."""
    expert_parallel: bool | None = None
    """Whether each process of ``tensor_parallel_size`` has whole experts instead of a part of each."""
    drain_timeout_s: int | None = None
    """Seconds that running requests get to finish after SIGTERM."""
    profile_dir: str | None = None
    """Folder in which ``POST /start_profile`` writes traces."""
    step_log_dir: str | None = None
    """Folder for the record of steps that ``bakeoff profile`` reads."""
    ablation: str | None = None
    """Parts kept to be compared with, such as ``static_batching,contiguous_cache``; the engine's help has them."""


class _Files(msgspec.Struct):
    files: list[str] = []
    traces: list[str] = []


async def _step_log(server: Server, path: str) -> list[str]:
    answer = msgspec.json.decode(await ask_recorder(server, path), type=_Files)
    return answer.files or answer.traces


def _speculate(speculation: Speculation) -> Setting | Cannot:
    if speculation.method not in _METHODS:
        return Cannot(f"it knows the methods {', '.join(_METHODS)}, not {speculation.method!r}")
    if (_METHODS[speculation.method] == "needs") != (speculation.model is not None):
        return Cannot(
            f"{speculation.method} {_METHODS[speculation.method]} the folder of a draft model, speculation.model"
        )
    parts = (_NAMES.get(speculation.method, speculation.method), str(speculation.num_tokens), speculation.model)
    return Setting(("--speculation", ":".join(filter(None, parts))))


_QUANTIZATIONS = (
    "auto", "stored", "none", "int8", "int8-zp", "int4", "int4-zp", "fp8", "w8a8", "llm-int8", "nf4",
    "nf4-double", "mxfp4",
)  # fmt: skip


class ReferenceEngine(ServerEngine):
    """Starts ``python -m bakeoff.reference_engine serve``."""

    adapter = "reference"
    owned_by = "reference_engine"
    Options = ReferenceOptions
    lists_model = True
    spellings: ClassVar[Spellings] = {
        "dtype": one_of(("auto", "float32", "bfloat16", "float16"), flag("--dtype")),
        "quantization": one_of(_QUANTIZATIONS, flag("--quantization")),
        "kv_cache_dtype": one_of(("auto", "int8", "fp8", "int4"), flag("--kv-cache-dtype")),
        "max_model_len": flag("--max-model-len"),
        "max_num_seqs": flag("--max-num-seqs"),
        "max_num_batched_tokens": flag("--max-num-batched-tokens"),
        "tensor_parallel_size": flag("--tensor-parallel-size"),
        "pipeline_parallel_size": flag("--pipeline-parallel-size"),
        "enable_prefix_caching": switch("--enable-prefix-caching", "--no-enable-prefix-caching"),
        "enable_chunked_prefill": switch("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
        "memory_fraction": flag("--gpu-memory-utilization"),
        "cpu_offload_gb": flag("--cpu-offload-gb"),
        "speculation": _speculate,
        "seed": Cannot("it decodes greedily, or with each request's own seed"),
    }
    setting_places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **{
            name: (f"config.{name}",)
            for name in (
                "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
                "tensor_parallel_size", "pipeline_parallel_size", "enable_prefix_caching", "enable_chunked_prefill",
                "cpu_offload_gb",
            )
        },
        "dtype": ("dtype",),
        "memory_fraction": ("config.gpu_memory_utilization",),
    }  # fmt: skip
    recording_options: ClassVar[Mapping[str, Any]] = {"step_log_dir": "{file:step-log}"}
    kernel_options: ClassVar[Mapping[str, Any]] = {"profile_dir": "{file:profile}"}
    metrics = METRICS
    stop_grace_s = (5.0, 2.0)

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """The reference engine's dialect."""
        return ReferenceDialect()

    def command(self) -> Sequence[str]:
        """The interpreter that runs Bakeoff, since the engine is part of it, or what the deployment names."""
        deployment = self.setup.deployment
        if deployment.program:
            return (deployment.program, "serve")
        if deployment.environment:
            return (str(self.environment().python), *_SERVE)
        if not all(importlib.util.find_spec(package) for package in _PACKAGES):
            raise NotInstalled("the reference engine is not installed here", how_to_install("engine"))
        return (sys.executable, *_SERVE)

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """One flag for each option that is set."""
        where = ("--model", model, "--served-model-name", self.model_id, "--host", host, "--port", str(port))
        return (*where, *option_argv(self.setup.options))

    async def reset_cache(self, server: Server) -> bool:
        """Empty its prefix cache."""
        return await server.post("/reset_prefix_cache")

    async def start_step_log(self, server: Server) -> None:
        """Begin to record."""
        await _step_log(server, "/start_step_log")

    async def stop_step_log(self, server: Server) -> list[str]:
        """Stop recording; returns the files."""
        return await _step_log(server, "/stop_step_log")

    async def start_kernels(self, server: Server) -> None:
        """Begin to record."""
        await _step_log(server, "/start_profile")

    async def stop_kernels(self, server: Server) -> list[str]:
        """Stop recording; returns the traces."""
        return await _step_log(server, "/stop_profile")

    def prefix_cache_in(self, description: Mapping[str, Any]) -> PrefixCacheFacts:
        """The facts that ``/version`` has, once the model is loaded."""
        config: Mapping[str, Any] = description.get("config") or {}
        block_tokens, blocks = config.get("block_size"), config.get("num_blocks")
        capacity_tokens = block_tokens * blocks if block_tokens and blocks else None
        is_on = config.get("enable_prefix_caching")
        to_the_token = config.get("hits_to_the_token", True)  # virtual engines find whole blocks
        return PrefixCacheFacts(is_on, block_tokens, capacity_tokens, hits_to_the_token=to_the_token)

    async def describe(self, server: Server) -> dict[str, Any]:
        """Versions and all resolved settings, from ``/version``."""
        return await server.get_json("/version") or {}
