"""Any OpenAI-compatible server that runs already, the service itself among them."""

import urllib.parse
from typing import Literal

import msgspec

from engines.adapters.address import AddressEngine
from engines.base import Setup
from engines.dialects import Dialect, OpenAiDialect, OpenAiServiceDialect, ResponsesDialect
from engines.identity import Identity, Pages, listed_models

_SERVICE = "api.openai.com"
_LENGTH = "answers end where the model ends them, since their length cannot be forced: compare figures per token"
_HIDDEN = "thinking that the server hides is in the time to the first token, and its tokens are not counted"
_AS_CHAT = "a completion is sent as a chat of one message: the tokens of the chat template come on top of its prompt"


class OpenAiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``openai`` adapter."""

    api: Literal["chat", "responses"] = "chat"
    """``chat``: chat and completions, as a turn is one or the other. ``responses``: /v1/responses for both."""
    official: bool | None = None
    """Whether it is OpenAI's own service, whose padding of events is then switched off, or a gateway to it; the
    default is to look at the address. Others may refuse that field."""


class OpenAiEngine(AddressEngine):
    """An address. Lengths are upper bounds: the official format cannot force them."""

    adapter = "openai"
    Options = OpenAiOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        told = [_LENGTH]
        if not isinstance(self.dialect, OpenAiDialect) or isinstance(self.dialect, OpenAiServiceDialect):
            told.append(_HIDDEN)
        if setup.options.api == "responses":
            told.append(_AS_CHAT)
        self.notes = tuple(told)

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """See :class:`~engines.server_engine.ServerEngine`: whatever lists models."""
        models = listed_models(pages)
        return Identity(cls.adapter, tuple(model.id for model in models), models[0].root) if models else None

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The one that the options name."""
        options: OpenAiOptions = setup.options
        host = urllib.parse.urlsplit(setup.deployment.url or "").hostname
        official = host == _SERVICE if options.official is None else options.official
        if options.api == "responses":
            return ResponsesDialect(official=official)
        return OpenAiServiceDialect() if official else OpenAiDialect()
