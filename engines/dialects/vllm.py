"""vLLM's dialect: the OpenAI routes with forced lengths and token ids.

vLLM ignores fields that it does not know, so nothing tells that one is misspelt: tests hold the bodies against its
schema. The end of a stream proves nothing either: ``[DONE]`` follows errors too, and an aborted answer has a finish
reason like any other. Where a prompt leaves no room for the whole answer, ``max_tokens`` is lowered without a word;
it is ``min_tokens`` that then makes it refuse the request.
"""

from typing import Any, ClassVar

from engines.dialects.base import Event, Finish, StreamFault
from engines.dialects.openai import OpenAiDialect
from workloads.types import Turn

_ABORT = "abort"


class VllmDialect(OpenAiDialect):
    """Exact lengths by ``ignore_eos`` and ``min_tokens``; exact counts by ``return_token_ids``.

    An answer that is held to a JSON schema ends with it: forbidding the end would leave no token that is allowed.
    """

    name = "vllm"
    exact_length = True
    neutral: ClassVar[dict[str, Any]] = {"repetition_penalty": 1.0}
    """What a model's generation config could change of greedy decoding, on a server that was not told to ignore it."""

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens, with their ids; of at most so many under a schema."""
        forced = {"ignore_eos": True, "min_tokens": turn.output_tokens} if turn.json_schema is None else {}
        return {**super().sampling(turn), **forced, "return_token_ids": True, **self.neutral}

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload; an answer that the server aborted is no answer."""
        return [_unless_aborted(event) for event in super().events(data)]


class ReferenceDialect(VllmDialect):
    """The reference engine's: vLLM's field names, and no generation config to neutralise."""

    name = "reference"
    neutral: ClassVar[dict[str, Any]] = {}


def _unless_aborted(event: Event) -> Event:
    if isinstance(event, Finish) and event.reason == _ABORT:
        return StreamFault("the server aborted the request")
    return event
