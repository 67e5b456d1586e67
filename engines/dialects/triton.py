"""Triton's ``generate_stream`` in front of TensorRT-LLM's models: the ensemble, BLS, or the LLM API.

Its quirks, from https://github.com/triton-inference-server/tensorrtllm_backend (written from the source; never tested
against a running server):

- Events carry no token counts, and the stream has no end mark: an orderly close is the only sign of a complete answer.
- Errors are events under HTTP 200.
- The LLM API's model repeats the whole answer so far in every event, and sends a finish reason on request.
- It takes plain text and no chats.
"""

import urllib.parse
from typing import Any, Literal

import msgspec

from bakeoff.engines.dialects import failures
from bakeoff.engines.dialects.base import EmptyChunk, Event, EventReader, Finish, HttpRequest, StreamFault, TokenDelta
from bakeoff.engines.dialects.fields import Carriers, Sampled, at
from bakeoff.engines.dialects.openai import STREAM_HEADERS
from bakeoff.engines.errors import BadOption
from bakeoff.workloads.types import Turn

Fields = Literal["ensemble", "llm-api"]
"""Naming scheme of a request's fields: of the ensemble and ``tensorrt_llm_bls``, or of the LLM API's model."""


class TritonDialect:
    """Text in, text out; requests name the model as Triton's repository does.

    Args:
        fields: naming scheme of the request's fields.
        cumulative: whether each event repeats the whole answer so far; the default is that of the model.
    """

    name = "triton"
    ends_by_closing = True
    takes_messages = False

    def __init__(self, fields: Fields = "ensemble", *, cumulative: bool | None = None) -> None:
        self._fields = fields
        self._cumulative = fields == "llm-api" if cumulative is None else cumulative

    @property
    def exact_length(self) -> bool:
        """Whether ``end_id`` can disable the end of sequence; the LLM API's model has no such field."""
        return self._fields == "ensemble"

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:  # noqa: ARG002
        """A streamed, greedy request that excludes the prompt from the answer.

        Raises:
            BadOption: the turn is a chat.
        """
        if turn.prompt is None:
            raise BadOption(
                "Triton takes plain text and no chats; name the folder of the model's tokenizer, which renders them "
                "(tokenizer in [model], or --tokenizer of bench)"
            )
        body = self._ensemble(turn) if self._fields == "ensemble" else self._llm_api(turn)
        path = f"/v2/models/{urllib.parse.quote(model, safe='')}/generate_stream"
        return HttpRequest(path, STREAM_HEADERS, msgspec.json.encode({"text_input": turn.prompt, **body}))

    def carriers(self, turn: Turn) -> Carriers:  # noqa: ARG002  (it has only completions)
        """Settings of the model's inputs; a temperature lifts ``top_k`` 1."""
        names = ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
        prefix, seed = ("", "random_seed") if self._fields == "ensemble" else ("sampling_param_", "seed")
        return {
            "temperature": Sampled(f"{prefix}temperature", f"{prefix}top_k"),
            **{name: at(f"{prefix}{name}") for name in names},
            "seed": at(f"{prefix}{seed}"),
        }

    def reader(self) -> EventReader:
        """A new reader, because events can be cumulative."""
        return _Reader(cumulative=self._cumulative)

    def refusal(self, status: int, body: bytes) -> str:
        return failures.refusal(status, body)

    def _ensemble(self, turn: Turn) -> dict[str, Any]:
        return {
            "max_tokens": turn.output_tokens,
            **({} if turn.ends_by_itself else {"end_id": -1}),
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
    finish_reason: Any = None
    error: Any = None


class _Reader:
    def __init__(self, *, cumulative: bool) -> None:
        self._cumulative = cumulative
        self._decoder = msgspec.json.Decoder(_Response)
        self._text = ""

    def events(self, data: bytes) -> list[Event]:
        try:
            response = self._decoder.decode(data)
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]
        if response.error:
            return [StreamFault(failures.error_text(response.error))]
        if response.text_output is None:
            return [StreamFault(f"not a chunk of this format (no text_output): {failures.clip(data)}")]
        text = self._added(response.text_output)
        # In the ensemble an event without text is a special token; with the LLM API it is part of a character.
        events: list[Event] = [TokenDelta(text) if text or not self._cumulative else EmptyChunk()]
        reason = response.finish_reason
        return [*events, Finish(reason)] if isinstance(reason, str) else events

    def _added(self, text: str) -> str:
        """The text that this event adds, without a trailing incomplete character."""
        if not self._cumulative:
            return text
        before, self._text = self._text, text.rstrip("\N{REPLACEMENT CHARACTER}")
        return self._text.removeprefix(before)
