"""The in-repo reference engine, as one more server over HTTP."""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from engines.adapters.vllm import METRICS
from engines.base import Setup
from engines.dialects import Dialect, ReferenceDialect
from engines.errors import NotInstalled
from engines.launcher import Server
from engines.server_engine import ServerEngine
from engines.spec import Cannot, Setting, Spellings, flag, one_of, option_argv, switch

_PACKAGES = ("torch", "safetensors", "prometheus_client", "gguf")
"""What the extra ``engine`` adds; looked for, not imported."""


class ReferenceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``reference`` adapter; each is the flag of ``python -m reference_engine serve`` of that name."""

    device: str | None = None
    """``auto``, ``cpu`` or ``cuda``."""
    block_size: int | None = None
    """Tokens in one KV block."""
    num_blocks: int | None = None
    """KV blocks in the pool."""
    kv_cache_memory_bytes: int | None = None
    """Size of the pool in bytes, instead of ``num_blocks``."""
    kv_allocator: str | None = None
    """``paged``, or ``contiguous``: memory for the longest sequence at once; wants ``enable_prefix_caching`` off."""
    policy: str | None = None
    """``continuous`` batching, ``no_chunking``: the same with prompts in one piece, or ``static``."""
    preemption: str | None = None
    """What becomes of a request that makes room: ``recompute`` or ``swap``."""
    swap_memory_bytes: int | None = None
    """Host memory for ``swap``."""
    priority_patience_steps: int | None = None
    """By how many steps one level of priority sends a request forward."""
    max_queue: int | None = None
    """Requests that may wait; more get HTTP 429."""
    attention_window: int | None = None
    """Latest tokens that a token sees, in every layer."""
    attention_sinks: int | None = None
    """First tokens that stay in sight besides them."""
    kv_budget: int | None = None
    """Tokens that each layer and KV head keeps (H2O)."""
    kv_heavy: int | None = None
    """Those of them that got the most attention."""
    threads: int | None = None
    """CPU threads of each process; by default its share of all cores."""
    data_parallel_size: int | None = None
    """Engines behind the same port, each with the whole model."""
    drain_timeout_s: int | None = None
    """Seconds that requests under way get to end after SIGTERM."""
    profile_dir: str | None = None
    """Where ``POST /start_profile`` writes traces."""
    slow_down: float | None = None
    """For tests of gates: how much longer its model takes, as a share."""


class ReferenceEngine(ServerEngine):
    """Starts ``python -m reference_engine serve``."""

    adapter = "reference"
    owned_by = "reference_engine"
    Options = ReferenceOptions
    lists_model = True
    spellings: ClassVar[Spellings] = {
        "dtype": one_of(("auto", "float32", "bfloat16", "float16"), flag("--dtype")),
        "quantization": one_of(("auto", "stored", "none"), flag("--quantization")),
        "kv_cache_dtype": one_of(("auto", "int8", "fp8", "int4"), flag("--kv-cache-dtype")),
        "max_model_len": flag("--max-model-len"),
        "max_num_seqs": flag("--max-num-seqs"),
        "max_num_batched_tokens": flag("--max-num-batched-tokens"),
        "tensor_parallel_size": flag("--tensor-parallel-size"),
        "enable_prefix_caching": switch("--enable-prefix-caching", "--no-enable-prefix-caching"),
        "enable_chunked_prefill": lambda value: Setting(() if value else ("--policy", "no_chunking")),
        "seed": Cannot("it decodes greedily, or with each request's own seed"),
    }
    metrics = METRICS
    stop_grace_s = (5.0, 2.0)

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """Its own."""
        return ReferenceDialect()

    def command(self) -> Sequence[str]:
        """The interpreter that runs this."""
        if not all(importlib.util.find_spec(package) for package in _PACKAGES):
            raise NotInstalled("the reference engine is not installed here", "pip install 'bakeoff[engine]'")
        return (sys.executable, "-m", "reference_engine", "serve")

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """One flag for each option that is set."""
        where = ("--model", model, "--served-model-name", self.model_id, "--host", host, "--port", str(port))
        return (*where, *option_argv(self.setup.options))

    async def reset_cache(self, server: Server) -> bool:
        """Empty its prefix cache."""
        return await server.post("/reset_prefix_cache")

    async def describe(self, server: Server) -> dict[str, Any]:
        """What ``/version`` says: versions and every resolved setting."""
        return await server.get_json("/version") or {}
