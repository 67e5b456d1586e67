"""``transformers serve``: Hugging Face's own OpenAI-compatible server."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from engines.dialects import TransformersDialect
from engines.engine import Model, base_url
from engines.errors import ModelNotFound, NotInstalled
from engines.launcher import Launch, Server


class TransformersOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``transformers`` adapter."""

    dtype: str | None = None
    """``auto`` (the checkpoint's own), ``float32``, ``bfloat16`` or ``float16``."""
    device: str | None = None
    """``auto``, ``cpu`` or ``cuda``."""
    continuous_batching: bool = False
    """Off, the server answers requests one after another."""
    attn_implementation: str | None = None
    """``eager``, ``sdpa`` or ``flash_attention_2``."""
    url: str | None = None
    """Where it runs already, instead of launching it."""


class TransformersEngine:
    """Starts ``transformers serve MODEL``; the model is loaded before the port opens."""

    adapter = "transformers"

    def __init__(self, model: Model, options: TransformersOptions) -> None:
        self.url = base_url(options.url) if options.url else None
        self._path = model.path
        self._options = options
        self.dialect = TransformersDialect()
        self.model_id = model.path or model.name  # it refuses any other name than the one it was started with

    def launch(self, port: int) -> Launch | None:
        """Offline, so that a local folder is never looked up on a hub."""
        if self.url:
            return None
        if self._path is None:
            raise ModelNotFound("transformers serve needs a model folder; set path in [model]")
        program = Path(sys.executable).with_name("transformers")
        if not program.exists():
            raise NotInstalled("transformers is not installed here; run: pip install 'bakeoff[hf]'")
        argv = [str(program), "serve", self._path, "--host", "127.0.0.1", "--port", str(port)]
        flags = msgspec.to_builtins(msgspec.structs.replace(self._options, url=None))
        for name, value in flags.items():
            flag = f"--{name.replace('_', '-')}"
            argv += [flag] if value is True else [flag, str(value)]
        return Launch(tuple(argv), port, env={"HF_HUB_OFFLINE": "1"}, stop_grace_s=(6.0, 2.0))

    async def reset_cache(self, server: Server) -> bool:  # noqa: ARG002
        """It keeps no cache between requests."""
        return False

    async def describe(self, server: Server) -> dict[str, Any]:  # noqa: ARG002  (it has no version endpoint)
        """Versions of the packages in the environment that it was started from; nothing when somebody else did."""
        if self.url:
            return {}
        return {name if name == "torch" else "version": metadata.version(name) for name in ("transformers", "torch")}
