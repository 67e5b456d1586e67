"""llama.cpp's dialects: llama-server's native ``/completion`` and its OpenAI routes, and llama-cpp-python's server.

Quirks of llama-server, from ``tools/server/README.md`` of https://github.com/ggml-org/llama.cpp and its source:

- Its sampling defaults are not neutral (temperature 0.8, top-k 40), so requests set greedy decoding explicitly.
- A request without streaming keeps its slot until it ends, even if the client has left, so all requests stream.
- It closes the connection after each stream although it announces keep-alive; a request sent on the same connection
  would be lost and look like a failure of the engine. So each request asks for ``connection: close``.
- ``/completion`` takes no chats; chats use the OpenAI route.
"""

from typing import Any, ClassVar

import msgspec

from bakeoff.engines.dialects.base import EventReader, HttpRequest
from bakeoff.engines.dialects.fields import EXTENDED, OFFICIAL, Carriers, at, same
from bakeoff.engines.dialects.llama_cpp_stream import LlamaServerReader
from bakeoff.engines.dialects.openai import STREAM_HEADERS, OpenAiDialect
from bakeoff.workloads.types import Turn

_HEADERS = {**STREAM_HEADERS, "connection": "close"}
_VERBOSE = {"verbose": True, "return_tokens": True}
"""Fields that add the native event to each chunk of a completion."""


class LlamaCppDialect(OpenAiDialect):
    """llama-server's OpenAI routes: exact lengths by ``ignore_eos``, since they have no ``min_tokens``.

    Args:
        cache_prompt: whether a request may reuse the slot's cached prefix of its prompt; None for the server's default.
        token_ids: request token ids in completions, at about 150 bytes per token; chats have none.
    """

    name = "llama_cpp"
    exact_length = True
    neutral: ClassVar[dict[str, Any]] = {"repeat_penalty": 1.0}
    """Parameters that affect greedy decoding and that flags or the GGUF could change."""

    def __init__(self, *, cache_prompt: bool | None = None, token_ids: bool = False) -> None:
        super().__init__()
        self._cache_prompt = cache_prompt
        self.takes_token_ids = token_ids

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request on a connection of its own."""
        return msgspec.structs.replace(super().request(turn, model, logprobs=logprobs), headers=_HEADERS)

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens; under a JSON schema, of at most that many."""
        forced = {} if turn.ends_by_itself else {"ignore_eos": True}
        fields = {**super().sampling(turn), **forced, **self.neutral, **self.caching()}
        return fields | (_VERBOSE if self.takes_token_ids and turn.messages is None else {})

    def carriers(self, turn: Turn) -> Carriers:
        """Those of the OpenAI format, on every route; the repetition penalty has another name."""
        return {**super().carriers(turn), "repetition_penalty": at("repeat_penalty")}

    def caching(self) -> dict[str, Any]:
        """The field that allows or forbids use of the slot's cache."""
        return {} if self._cache_prompt is None else {"cache_prompt": self._cache_prompt}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Log-probabilities of the chosen token only (the default is 20), with counts that assign them to tokens."""
        if turn.messages is not None:
            return {"logprobs": True, "top_logprobs": 1, "timings_per_token": True}
        return {"logprobs": 1, **_VERBOSE}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """OpenAI's field in chats; completions have only the server's own field."""
        return super().answer_format(turn) if turn.messages is not None else _own_format(turn)

    def reader(self) -> EventReader:  # type: ignore[override]  (stateful)
        """A new reader, because token counts are cumulative."""
        return LlamaServerReader(self)


class LlamaCppNativeDialect(LlamaCppDialect):
    """``/completion`` with the id of every token; chats use the OpenAI route."""

    name = "llama_cpp-native"

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~bakeoff.engines.dialects.base.Dialect`."""
        if turn.messages is not None:
            return super().request(turn, model, logprobs=logprobs)
        body: dict[str, Any] = {"prompt": turn.prompt, "stream": True, "n_predict": turn.output_tokens}
        body |= {"temperature": 0, "return_tokens": True, **self.neutral, **self.caching()}
        body |= _own_format(turn) if turn.ends_by_itself else {"ignore_eos": True}
        if logprobs:
            body["n_probs"] = 1
        return HttpRequest("/completion", _HEADERS, msgspec.json.encode(body))


def _own_format(turn: Turn) -> dict[str, Any]:
    return {} if turn.json_schema is None else {"json_schema": msgspec.Raw(turn.json_schema.encode())}


class LlamaCppPythonDialect(OpenAiDialect):
    """llama-cpp-python's server: exact lengths by ``min_tokens``, which bans the end of sequence.

    Its quirks, from ``llama_cpp/server`` of https://github.com/abetlen/llama-cpp-python: the default repetition penalty
    of 1.1 would change greedy decoding; streams have no usage, and a chunk can hold several tokens of one character, so
    answers are counted by the tokenizer; too long a prompt gets HTTP 200 and an empty stream, a truncated answer.

    Args:
        logprobs: whether the server was started with ``--logits_all``; without it, it refuses log-probabilities.
    """

    name = "llama_cpp_python"
    exact_length = True

    def __init__(self, *, logprobs: bool = False) -> None:
        super().__init__()
        self._logprobs = logprobs

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens; of at most that many if the model ends the answer.

        A completion with a schema keeps its length: the server ignores its schema.
        """
        count = turn.output_tokens
        is_free = self.answer_format(turn) or turn.expected or turn.tools
        forced = {} if is_free else {"min_tokens": count}
        return {"max_tokens": count, **forced, "temperature": 0, "repeat_penalty": 1.0}

    def carriers(self, turn: Turn) -> Carriers:
        """Those of the OpenAI format but for reasoning; the repetition penalty has another name."""
        of_chat = {} if turn.messages is None else same("tools", "tool_choice")
        return {**OFFICIAL, **EXTENDED, **of_chat, "repetition_penalty": at("repeat_penalty")}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Fields that request each token's log-probability, if the server has them."""
        return super().asking_logprobs(turn) if self._logprobs else {}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """A chat's schema in the server's own format; completions take only grammars."""
        if turn.json_schema is None or turn.messages is None:
            return {}
        return {"response_format": {"type": "json_object", "schema": msgspec.Raw(turn.json_schema.encode())}}
