"""Triton's ``generate_stream`` in front of TensorRT-LLM's models.

Its stream says neither how many tokens it brought nor that it is whole: it ends by being closed, and only what closed
it in disorder shows. Errors come in events under HTTP 200. A model of the LLM API says the whole answer so far in every
event, and a finish reason where it is asked. Written from the models' sources; none was seen.
"""

import urllib.parse
from typing import Any, Literal

import msgspec

from engines.dialects import failures
from engines.dialects.base import EmptyChunk, Event, EventReader, Finish, HttpRequest, StreamFault, TokenDelta
from engines.dialects.openai import STREAM_HEADERS
from engines.dialects.tensorrt_llm import ended
from engines.errors import BadOption
from workloads.types import Turn

Fields = Literal["ensemble", "llm-api"]
"""Whose names a request's fields have: those of the ensemble and ``tensorrt_llm_bls``, or of the LLM API's model."""
_NO_REASON = frozenset({"", "None"})
"""How a model of Python's spells that there is none yet."""


class TritonDialect:
    """Text in, text out; what requests call the model is the model in Triton's repository.

    Args:
        fields: whose names are used.
        cumulative: whether each event says the whole answer so far; the default is what such a model does.
    """

    name = "triton"
    ends_by_closing = True
    takes_messages = False

    def __init__(self, fields: Fields = "ensemble", *, cumulative: bool | None = None) -> None:
        self._fields = fields
        self._cumulative = fields == "llm-api" if cumulative is None else cumulative

    @property
    def exact_length(self) -> bool:
        """The ensemble's end of sequence can be taken away; the LLM API's model has no field for that."""
        return self._fields == "ensemble"

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:  # noqa: ARG002
        """A streamed, greedy request; the prompt, which would be echoed, is kept out of the answer.

        Raises:
            BadOption: the turn is a chat.
        """
        if turn.prompt is None:
            raise BadOption("Triton takes plain text and no chats; give [model] the tokenizer that writes them out")
        body = self._ensemble(turn) if self._fields == "ensemble" else self._llm_api(turn)
        path = f"/v2/models/{urllib.parse.quote(model, safe='')}/generate_stream"
        return HttpRequest(path, STREAM_HEADERS, msgspec.json.encode({"text_input": turn.prompt, **body}))

    def reader(self) -> EventReader:
        """One for each answer."""
        return _Reader(cumulative=self._cumulative)

    def refusal(self, status: int, body: bytes) -> str:
        """One line for an answer whose status is not 200."""
        return failures.refusal(status, body)

    def _ensemble(self, turn: Turn) -> dict[str, Any]:
        return {
            "max_tokens": turn.output_tokens,
            "end_id": -1,
            "temperature": 0.0,
            "top_k": 1,
            "exclude_input_in_output": True,
            "stream": True,
        }

    def _llm_api(self, turn: Turn) -> dict[str, Any]:
        return {
            "sampling_param_max_tokens": turn.output_tokens,
            "sampling_param_temperature": 0.0,
            "sampling_param_top_k": 1,
            "sampling_param_exclude_input_from_output": True,
            "return_finish_reason": True,
            "streaming": True,
        }


class _Response(msgspec.Struct):
    text_output: str | None = None
    finish_reason: str | None = None
    error: Any = None


class _Reader:
    def __init__(self, *, cumulative: bool) -> None:
        self._cumulative = cumulative
        self._decoder = msgspec.json.Decoder(_Response)
        self._said = ""

    def events(self, data: bytes) -> list[Event]:
        """See :class:`~engines.dialects.base.EventReader`."""
        try:
            response = self._decoder.decode(data)
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]
        if response.error:
            return [StreamFault(failures.error_text(response.error))]
        if response.text_output is None:
            return [StreamFault(f"not a chunk of this format (no text_output): {failures.clip(data)}")]
        text = self._new(response.text_output)
        # The ensemble decodes each event by itself, a special token to nothing; the LLM API holds half characters back.
        events: list[Event] = [TokenDelta(text) if text or not self._cumulative else EmptyChunk()]
        reason = response.finish_reason
        return [*events, ended(Finish(reason))] if reason and reason not in _NO_REASON else events

    def _new(self, text: str) -> str:
        """What this event adds; half a character waits for its other half."""
        if not self._cumulative:
            return text
        said, self._said = self._said, text.rstrip("\N{REPLACEMENT CHARACTER}")
        return self._said.removeprefix(said)
