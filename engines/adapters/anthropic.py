"""Adapter of Anthropic's Messages API: the service, or a running server that imitates it.

The format cannot force the length of an answer, has no seed and reports token counts only per answer; these become
notes of the report. The key goes in the header ``x-api-key``.
"""

from typing import Literal

import msgspec

from bakeoff.engines.adapters.address import AddressEngine
from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import AnthropicDialect, Dialect
from bakeoff.engines.identity import Identity, Pages, listed_models


class AnthropicOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``anthropic`` adapter."""

    cache: Literal["5m", "1h"] | None = None
    """Lifetime of the cached system message, or of the first message without one; each use renews it. The default is
    no caching."""


class AnthropicEngine(AddressEngine):
    """A running server of the Messages API."""

    adapter = "anthropic"
    Options = AnthropicOptions
    key_header = "x-api-key"
    notes = (
        "answers end where the model ends them, because their length cannot be forced: compare figures per token",
        "the format counts tokens per answer, not per chunk: the token times within an answer are apportioned",
        "a completion is sent as a chat of one message: the tokens of the chat template come on top of its prompt",
        "there is no seed, so texts and lengths of answers differ between repeats",
    )

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """Its model list has another shape than OpenAI's."""
        names = tuple(model.id for model in listed_models(pages) if model.type == "model")
        return Identity(cls.adapter, names) if names else None

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The Messages dialect."""
        return AnthropicDialect(setup.options.cache)
