"""The dialect of ``trtllm-serve``: the OpenAI routes; unknown fields are refused.

Its quirks, from ``tensorrt_llm/serve`` (written from the source; never tested against a running server):

- An exception during a stream breaks the connection without an error event, and a proxy in front can turn that into
  an orderly close. So an answer is complete only if ``[DONE]`` follows its finish reason.
- ``logprobs: 0`` means none in completions, where the OpenAI format means those of the chosen token.
- Schemas are enforced only if the server was started with a guided-decoding backend; otherwise it refuses them.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects.base import Event, EventReader, Finish
from bakeoff.engines.dialects.fields import Carriers, Sampled, at
from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.engines.dialects.sse import DONE
from bakeoff.workloads.types import Turn


class TensorRtLlmDialect(OpenAiDialect):
    """Exact lengths by ``ignore_eos`` and ``min_tokens``.

    Args:
        token_ids: request ids instead of text from completions, for exact counts; chats have no ids.
    """

    name = "tensorrt_llm"
    exact_length = True

    def __init__(self, *, token_ids: bool = False) -> None:
        super().__init__()
        self.takes_token_ids = token_ids

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens; under a schema, of at most that many.

        Greedy is requested by temperature and by ``top_k``, because either may be the one that a backend reads.
        """
        forced = {"ignore_eos": True, "min_tokens": turn.output_tokens} if not turn.ends_by_itself else {}
        as_ids = {"detokenize": False} if self.takes_token_ids and turn.messages is None else {}
        return {**super().sampling(turn), **forced, "top_k": 1, **as_ids}

    def carriers(self, turn: Turn) -> Carriers:
        """Those of the OpenAI format, and a limit of thinking tokens; a temperature lifts ``top_k`` 1."""
        budget = {} if turn.messages is None else {"thinking_tokens": at("thinking_token_budget")}
        return {**super().carriers(turn), **budget, "temperature": Sampled("temperature", "top_k")}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Log-probabilities of the chosen tokens; 0 would mean none."""
        return {"logprobs": True} if turn.messages is not None else {"logprobs": 1}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """Type ``json``, which every release reads as a bare schema, unlike ``json_schema``."""
        if turn.json_schema is None:
            return {}
        return {"response_format": {"type": "json", "schema": msgspec.Raw(turn.json_schema.encode())}}

    def reader(self) -> EventReader:  # type: ignore[override]  (stateful)
        """A new reader, which delays the finish reason."""
        return _Reader(self)


class _Reader:
    """Delays the finish reason until ``[DONE]``."""

    def __init__(self, dialect: TensorRtLlmDialect) -> None:
        self._dialect = dialect
        self._finish: Finish | None = None

    def events(self, data: bytes) -> list[Event]:
        if data.startswith(DONE):
            return [self._finish] if self._finish else []
        events = self._dialect.events(data)
        self._finish = next((event for event in events if isinstance(event, Finish)), self._finish)
        return [event for event in events if not isinstance(event, Finish)]
