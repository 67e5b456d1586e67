"""Any OpenAI-compatible server that runs already."""

import os
from typing import Any

import msgspec

from engines.dialects import OpenAiDialect
from engines.engine import Model, base_url
from engines.errors import BadOption
from engines.launcher import Server


class OpenAiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``openai`` adapter."""

    url: str
    """Base URL, with or without the final ``/v1``."""
    model: str | None = None
    """The name that requests use; the default is the experiment's model name."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never stored."""


class OpenAiEngine:
    """An address. Lengths are upper bounds: the official format cannot force them."""

    adapter = "openai"

    def __init__(self, model: Model, options: OpenAiOptions) -> None:
        key = None
        if options.api_key_env:
            key = os.environ.get(options.api_key_env)
            if key is None:
                raise BadOption(f"the environment variable {options.api_key_env} is not set; export the key in it")
        self.url = base_url(options.url)
        self.dialect = OpenAiDialect(key)
        self.model_id = options.model or model.name

    def launch(self, port: int) -> None:  # noqa: ARG002
        """It runs already."""
        return

    async def reset_cache(self, server: Server) -> bool:  # noqa: ARG002
        """The format has no such call."""
        return False

    async def describe(self, server: Server) -> dict[str, Any]:  # noqa: ARG002
        """The format has no version endpoint."""
        return {}
