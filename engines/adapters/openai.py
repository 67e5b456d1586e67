"""Adapter of any running OpenAI-compatible server, including OpenAI's own service.

It speaks chat completions and completions, or the Responses API. The official format cannot force the length of an
answer, which becomes a note of the report.
"""

from typing import Literal

import msgspec

from bakeoff.engines.adapters.address import AddressEngine
from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, OpenAiDialect, OpenAiServiceDialect, ResponsesDialect
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.identity import Identity, Pages, listed_models

_SERVICE = "api.openai.com"
_LENGTH = (
    "answers end where the model ends them, because their length cannot be forced: compare figures per token, or name "
    "the engine behind the server, if its own adapter can force lengths"
)
_AS_CHAT = "a completion is sent as a chat of one message: the tokens of the chat template come on top of its prompt"


class OpenAiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``openai`` adapter."""

    api: Literal["chat", "responses"] = "chat"
    """``chat``: chat completions for chats, completions for prompts. ``responses``: /v1/responses for both."""
    official: bool | None = None
    """Whether it is OpenAI's service or a gateway to it, so that requests disable the padding of events; other servers
    may refuse that field. The default is decided by the address."""


class OpenAiEngine(AddressEngine):
    """A running server; requested lengths are upper bounds."""

    adapter = "openai"
    Options = OpenAiOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        notes = [_LENGTH]
        if setup.options.api == "responses":
            notes.append(_AS_CHAT)
        self.notes = tuple(notes)

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """Matches any server that lists models."""
        models = listed_models(pages)
        return Identity(cls.adapter, tuple(model.id for model in models), models[0].root) if models else None

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The dialect of the options ``api`` and ``official``."""
        options: OpenAiOptions = setup.options
        url = setup.deployment.address
        official = url is not None and endpoint(url).host == _SERVICE if options.official is None else options.official
        if options.api == "responses":
            return ResponsesDialect(official=official)
        return OpenAiServiceDialect() if official else OpenAiDialect()
