"""The in-repo reference engine, as one more server over HTTP."""

import importlib.util
import sys
from typing import Any

import aiohttp
import msgspec

from engines.dialects import ReferenceDialect
from engines.engine import Model, base_url
from engines.errors import ModelNotFound, NotInstalled
from engines.launcher import Launch, Server

_PACKAGES = ("torch", "safetensors", "prometheus_client", "gguf")
"""What the extra ``engine`` adds; looked for, not imported."""


class ReferenceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``reference`` adapter; each is the flag of ``python -m reference_engine serve`` of that name."""

    dtype: str | None = None
    """``auto``, ``float32``, ``bfloat16`` or ``float16``."""
    device: str | None = None
    """``auto``, ``cpu`` or ``cuda``."""
    max_model_len: int | None = None
    """Longest prompt plus answer, in tokens."""
    max_num_seqs: int | None = None
    """Sequences in one step."""
    max_num_batched_tokens: int | None = None
    """Token budget of one step: what chunked prefill cuts prompts to."""
    block_size: int | None = None
    """Tokens in one KV block."""
    num_blocks: int | None = None
    """KV blocks in the pool."""
    kv_cache_memory_bytes: int | None = None
    """Size of the pool in bytes, instead of ``num_blocks``."""
    policy: str | None = None
    """``continuous`` or ``static`` batching."""
    enable_prefix_caching: bool | None = None
    """Whether what prompts have in common at their beginning is computed once; the default is yes."""
    threads: int | None = None
    """CPU threads; the default is all cores."""
    url: str | None = None
    """Where it runs already, instead of launching it."""


class ReferenceEngine:
    """Starts ``python -m reference_engine serve``."""

    adapter = "reference"

    def __init__(self, model: Model, options: ReferenceOptions) -> None:
        self.url = base_url(options.url) if options.url else None
        self._path = model.path
        self._options = options
        self.dialect = ReferenceDialect()
        self.model_id = model.name

    def launch(self, port: int) -> Launch | None:
        """One flag for each option that is set."""
        if self.url:
            return None
        if self._path is None:
            raise ModelNotFound("the reference engine needs a model folder; set path in [model]")
        if not all(importlib.util.find_spec(package) for package in _PACKAGES):
            raise NotInstalled("the reference engine is not installed here; run: pip install 'bakeoff[engine]'")
        argv = [sys.executable, "-m", "reference_engine", "serve", "--model", self._path]
        argv += ["--served-model-name", self.model_id, "--host", "127.0.0.1", "--port", str(port)]
        flags = msgspec.to_builtins(msgspec.structs.replace(self._options, url=None))
        for name, value in flags.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                argv.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                argv += [f"--{flag}", str(value)]
        return Launch(tuple(argv), port, stop_grace_s=(5.0, 2.0))

    async def reset_cache(self, server: Server) -> bool:
        """Empty its prefix cache."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{server.base_url}/reset_prefix_cache") as answer,
            ):
                return answer.status == 200
        except aiohttp.ClientError:  # what is wrong with the server shows in the trial
            return False

    async def describe(self, server: Server) -> dict[str, Any]:
        """What ``/version`` says: versions and every resolved setting."""
        async with aiohttp.ClientSession() as session, session.get(f"{server.base_url}/version") as answer:
            return await answer.json()
