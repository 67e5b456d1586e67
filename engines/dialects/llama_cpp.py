"""llama.cpp's dialects: llama-server's own ``/completion`` and its OpenAI routes, and llama-cpp-python's server.

llama-server's defaults are not neutral (temperature 0.8, top-k 40), so greedy decoding is asked for by name. An answer
that is no stream runs to its end and keeps its slot though nobody waits for it: all requests are streams. After each
stream it closes the connection, though it says that it keeps it: a request that followed would be lost, and look like
a failure of the engine. So every request asks for that end, which then is told.
"""

from typing import Any, ClassVar

import msgspec

from engines.dialects.base import EventReader, HttpRequest
from engines.dialects.llama_cpp_stream import LlamaServerReader
from engines.dialects.openai import STREAM_HEADERS, OpenAiDialect
from workloads.types import Turn

_HEADERS = {**STREAM_HEADERS, "connection": "close"}
_VERBOSE = {"verbose": True, "return_tokens": True}
"""Fields that put the native event into each chunk of a completion."""


class LlamaCppDialect(OpenAiDialect):
    """llama-server's OpenAI routes: exact lengths by ``ignore_eos``, there is no ``min_tokens``.

    Args:
        cache_prompt: whether a request may use what the slot has of its prompt; None for the server's default.
        token_ids: have ids sent too, where a route has them: completions, at some 150 bytes a token.
    """

    name = "llama_cpp"
    exact_length = True
    neutral: ClassVar[dict[str, Any]] = {"repeat_penalty": 1.0}
    """What flags or the GGUF itself could change of greedy decoding."""

    def __init__(self, *, cache_prompt: bool | None = None, token_ids: bool = False) -> None:
        super().__init__()
        self._cache_prompt = cache_prompt
        self._token_ids = token_ids

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request on a connection of its own; see :class:`~engines.dialects.base.Dialect`."""
        return msgspec.structs.replace(super().request(turn, model, logprobs=logprobs), headers=_HEADERS)

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens; a JSON schema makes it at most so many."""
        forced = {"ignore_eos": True} if turn.json_schema is None else {}
        fields = {**super().sampling(turn), **forced, **self.neutral, **self.caching()}
        return fields | (_VERBOSE if self._token_ids and turn.messages is None else {})

    def caching(self) -> dict[str, Any]:
        """The field that says whether the prompt may be found in the cache."""
        return {} if self._cache_prompt is None else {"cache_prompt": self._cache_prompt}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Of the chosen token only, where the default is of 20; counts beside them tell which token is meant."""
        if turn.messages is not None:
            return {"logprobs": True, "top_logprobs": 1, "timings_per_token": True}
        return {"logprobs": 1, **_VERBOSE}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """A chat's is OpenAI's; completions know only the server's own field."""
        return super().answer_format(turn) if turn.messages is not None else _own_format(turn)

    def reader(self) -> EventReader:  # type: ignore[override]  (this one remembers)
        """One for each answer."""
        return LlamaServerReader(self)


class LlamaCppNativeDialect(LlamaCppDialect):
    """``/completion``, with the id of every token. It knows no chat: chats go by the OpenAI route."""

    name = "llama_cpp-native"

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~engines.dialects.base.Dialect`."""
        if turn.messages is not None:
            return super().request(turn, model, logprobs=logprobs)
        body: dict[str, Any] = {"prompt": turn.prompt, "stream": True, "n_predict": turn.output_tokens}
        body |= {"temperature": 0, "return_tokens": True, **self.neutral, **self.caching()}
        body |= _own_format(turn) or {"ignore_eos": True}
        if logprobs:
            body["n_probs"] = 1
        return HttpRequest("/completion", _HEADERS, msgspec.json.encode(body))


def _own_format(turn: Turn) -> dict[str, Any]:
    return {} if turn.json_schema is None else {"json_schema": msgspec.Raw(turn.json_schema.encode())}


class LlamaCppPythonDialect(OpenAiDialect):
    """llama-cpp-python's server: exact lengths by ``min_tokens``, which bans the end of sequence.

    Its default penalty of repetitions, 1.1, would change what greedy decoding says. It sends no usage: its chunks are
    counted by the tokenizer, since one may hold the pieces of a character. A prompt that is too long is answered with
    HTTP 200 and nothing, which is an answer cut off.

    Args:
        logprobs: whether the server keeps what log-probabilities need; else it would refuse them.
    """

    name = "llama_cpp_python"
    exact_length = True

    def __init__(self, *, logprobs: bool = False) -> None:
        super().__init__()
        self._logprobs = logprobs

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens; a JSON schema makes it at most so many."""
        wanted = turn.output_tokens
        forced = {} if self.answer_format(turn) else {"min_tokens": wanted}
        return {"max_tokens": wanted, **forced, "temperature": 0, "repeat_penalty": 1.0}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Fields that ask for each token's log-probability, where it has them."""
        return super().asking_logprobs(turn) if self._logprobs else {}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """A chat's schema, in its own spelling; completions know grammars only."""
        if turn.json_schema is None or turn.messages is None:
            return {}
        return {"response_format": {"type": "json_object", "schema": msgspec.Raw(turn.json_schema.encode())}}
