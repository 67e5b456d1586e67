"""Anthropic's Messages: the service itself, or a local server that speaks them."""

from typing import Literal

import msgspec

from engines.adapters.address import AddressEngine
from engines.base import Setup
from engines.dialects import AnthropicDialect, Dialect
from engines.identity import Identity, Pages, listed_models


class AnthropicOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``anthropic`` adapter."""

    cache: Literal["5m", "1h"] | None = None
    """How long the service shall keep the system's words, or the first message where there are none; each use renews
    it. The default asks for no cache."""


class AnthropicEngine(AddressEngine):
    """An address; nothing is known of what is behind it."""

    adapter = "anthropic"
    Options = AnthropicOptions
    key_header = "x-api-key"
    notes = (
        "answers end where the model ends them, since their length cannot be forced: compare figures per token",
        "the format counts tokens by answer, not by chunk: the pace of single tokens is apportioned",
        "a completion is sent as a chat of one message: the tokens of the chat template come on top of its prompt",
        "there is no seed, so that the words and lengths of answers differ between repeats",
    )

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """See :class:`~engines.server_engine.ServerEngine`; its list of models is not OpenAI's."""
        names = tuple(model.id for model in listed_models(pages) if model.type == "model")
        return Identity(cls.adapter, names) if names else None

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """Its own."""
        return AnthropicDialect(setup.options.cache)
