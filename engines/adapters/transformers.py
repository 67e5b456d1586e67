"""``transformers serve``: Hugging Face's own OpenAI-compatible server."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from engines.base import Setup
from engines.dialects import Dialect, TransformersDialect
from engines.errors import NotInstalled
from engines.identity import MODELS_PAGE, Identity, Pages, field_of, listed_models
from engines.launcher import Server
from engines.server_engine import ServerEngine
from engines.spec import Spellings, flag, one_of


class TransformersOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``transformers`` adapter."""

    device: str | None = None
    """``auto``, ``cpu`` or ``cuda``."""
    continuous_batching: bool = False
    """Off, the server answers requests one after another."""
    attn_implementation: str | None = None
    """``eager``, ``sdpa`` or ``flash_attention_2``."""
    cb_block_size: int | None = None
    """Continuous batching: tokens in one KV block."""
    cb_num_blocks: int | None = None
    """Continuous batching: KV blocks in the pool."""


class TransformersEngine(ServerEngine):
    """Starts ``transformers serve MODEL``; the model is loaded before the port opens."""

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
        """See :class:`~engines.server_engine.ServerEngine`; no other server has a route that loads a model.

        It lists what lies in the hub's cache, not what it was started with.
        """
        names = tuple(model.id for model in listed_models(pages))
        is_its_own = field_of(pages, "/openapi.json", "paths", "/load_model") is not None
        return Identity(cls.adapter, names) if is_its_own else None

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """Its own."""
        return TransformersDialect()

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.deployment.served_model_name is None:
            self.model_id = setup.model.path or setup.model.name  # it refuses any other name than it was started with

    def command(self) -> Sequence[str]:
        """The console script of its environment."""
        if self.setup.deployment.program:
            return (self.setup.deployment.program, "serve")
        program = self.environment().program("transformers")
        if not program.exists():
            raise NotInstalled("transformers is not installed here", "pip install 'bakeoff[hf]'")
        return (str(program), "serve")

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """The model must be named: without, the server loads whatever a request asks for."""
        argv = [model, "--host", host, "--port", str(port)]
        for name, value in msgspec.to_builtins(self.setup.options).items():
            flag_name = f"--{name.replace('_', '-')}"
            argv += [flag_name] if value is True else [flag_name, str(value)] if value is not None else []
        return argv

    async def describe(self, server: Server) -> dict[str, Any]:  # noqa: ARG002  (it has no version endpoint)
        """Versions of the packages in the environment that it was started from; nothing when somebody else did."""
        deployment = self.setup.deployment
        if self.url or deployment.container or deployment.ssh or deployment.program:
            return {}
        place = self.environment()
        return {"version": place.version("transformers"), "torch": place.version("torch")}
