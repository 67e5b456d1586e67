"""Adapter of ``transformers serve``, Hugging Face's OpenAI-compatible server.

Its quirks: it accepts only the model name that it was started with; ``/v1/models`` lists the local hub cache instead of
the served model; it has neither a version endpoint nor metrics nor a call that empties the cache.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, TransformersDialect
from bakeoff.engines.errors import NotInstalled
from bakeoff.engines.identity import MODELS_PAGE, Identity, Pages, field_of, listed_models
from bakeoff.engines.launcher import Server
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Spellings, flag, one_of
from bakeoff.installation import how_to_install

_SERVING = ("fastapi", "openai", "uvicorn")
"""Packages of transformers' extra ``serving``: without them the command exists, but exits at once."""


class TransformersOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``transformers`` adapter."""

    device: str | None = None
    """``auto``, ``cpu`` or ``cuda``."""
    continuous_batching: bool = False
    """Whether requests are batched; without it the server answers them one after another."""
    attn_implementation: str | None = None
    """``eager``, ``sdpa`` or ``flash_attention_2``."""
    cb_block_size: int | None = None
    """Tokens per KV block of continuous batching."""
    cb_num_blocks: int | None = None
    """KV blocks in the pool of continuous batching."""


class TransformersEngine(ServerEngine):
    """Starts ``transformers serve MODEL``, which opens its port once the model is loaded."""

    adapter = "transformers"
    Options = TransformersOptions
    identity_pages = (MODELS_PAGE, "/openapi.json")
    recipes = ("transformers",)
    distributions = ("transformers",)
    spellings: ClassVar[Spellings] = {
        "dtype": one_of(("auto", "float32", "bfloat16", "float16"), flag("--dtype")),
        "quantization": one_of(("bnb-4bit", "bnb-8bit"), flag("--quantization")),
        "max_num_batched_tokens": flag("--cb-max-batch-tokens"),
        "memory_fraction": flag("--cb-max-memory-percent"),
        "seed": flag("--default-seed"),
    }
    container_command = ("transformers", "serve")
    stop_grace_s = (6.0, 2.0)

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """Recognised by its unique route ``/load_model``."""
        names = tuple(model.id for model in listed_models(pages))
        has_route = field_of(pages, "/openapi.json", "paths", "/load_model") is not None
        return Identity(cls.adapter, names) if has_route else None

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """The dialect of ``transformers serve``."""
        return TransformersDialect()

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.deployment.served_model_name is None:
            self.model_id: str = setup.model.path or setup.model.name  # it refuses other names

    def command(self) -> Sequence[str]:
        """The configured program, or the console script of its environment."""
        if self.setup.deployment.program:
            return (self.setup.deployment.program, "serve")
        place = self.environment()
        program = place.program("transformers")
        if not program.exists():
            raise NotInstalled("transformers is not installed here", how_to_install("hf"))
        if missing := [name for name in _SERVING if place.version(name) is None]:
            raise NotInstalled(f"transformers serve also needs {', '.join(missing)}", how_to_install("hf"))
        return (str(program), "serve")

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Model, address and options. Without a model, the server would load whatever model a request names."""
        argv = [model, "--host", host, "--port", str(port)]
        for name, value in msgspec.to_builtins(self.setup.options).items():
            flag_name = f"--{name.replace('_', '-')}"
            argv += [flag_name] if value is True else [flag_name, str(value)] if value is not None else []
        return argv

    async def describe(self, server: Server) -> dict[str, Any]:  # noqa: ARG002  (it has no version endpoint)
        """Versions of transformers and torch, if it was started from an environment of this machine."""
        deployment = self.setup.deployment
        if self.url or deployment.container or deployment.ssh or deployment.program:
            return {}
        place = self.environment()
        return {"version": place.version("transformers"), "torch": place.version("torch")}
