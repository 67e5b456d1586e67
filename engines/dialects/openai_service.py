"""The OpenAI format as OpenAI's own service speaks it, or a gateway to it.

Its quirks: it pads events with random text unless ``include_obfuscation`` is false; chats bound the answer with
``max_completion_tokens``, since reasoning models refuse ``max_tokens``; it takes back no reasoning in chats.
Source: https://platform.openai.com/docs/api-reference/chat.
"""

from typing import Any, ClassVar

from bakeoff.engines.dialects.fields import OFFICIAL, OFFICIAL_CHAT, Carriers
from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.workloads.types import Turn


class OpenAiServiceDialect(OpenAiDialect):
    """Unpadded events, and the newer name of the bound on a chat's answer."""

    name = "openai-service"
    reasoning_field: ClassVar[str | None] = None

    def carriers(self, turn: Turn) -> Carriers:
        """The official settings alone: the service refuses others."""
        return OFFICIAL if turn.messages is None else {**OFFICIAL, **OFFICIAL_CHAT}

    def sampling(self, turn: Turn) -> dict[str, Any]:
        fields = super().sampling(turn)
        if turn.messages is not None:
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        return {**fields, "stream_options": {"include_usage": True, "include_obfuscation": False}}
