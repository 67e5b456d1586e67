"""vLLM's dialect: the OpenAI routes with forced lengths and token ids. The reference engine speaks the same.

Its quirks, from ``vllm/entrypoints/openai``:

- Unknown fields are ignored silently, so tests check request bodies against vLLM's schema.
- ``[DONE]`` also follows errors, and an aborted answer has the finish reason ``abort``, so the end of a stream does
  not prove a complete answer.
- The reasoning of an earlier answer is read from ``reasoning`` alone; versions up to about 0.11 named it
  ``reasoning_content``.
- If a prompt leaves too little room for the answer, vLLM lowers ``max_tokens`` silently; with ``min_tokens`` it
  refuses the request instead.
"""

from typing import Any, ClassVar

from bakeoff.engines.dialects.fields import Carriers, at
from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.workloads.types import Turn


class VllmDialect(OpenAiDialect):
    """Exact lengths by ``ignore_eos`` and ``min_tokens``; exact counts by ``return_token_ids``.

    Under a JSON schema the length is not forced: after the closing brace only the end of sequence is allowed.
    """

    name = "vllm"
    exact_length = True
    takes_token_ids = True
    reasoning_field: ClassVar[str | None] = "reasoning"
    neutral: ClassVar[dict[str, Any]] = {"repetition_penalty": 1.0}
    """Parameters that a model's generation config could change, unless the server was started to ignore it."""

    def carriers(self, turn: Turn) -> Carriers:
        """Those of the OpenAI routes, and a limit of thinking tokens."""
        budget = {} if turn.messages is None else {"thinking_tokens": at("thinking_token_budget")}
        return {**super().carriers(turn), **budget}

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens, with their ids; under a schema, of at most that many."""
        forced = {"ignore_eos": True, "min_tokens": turn.output_tokens} if not turn.ends_by_itself else {}
        return {**super().sampling(turn), **forced, "return_token_ids": True, **self.neutral}


class ReferenceDialect(VllmDialect):
    """The reference engine: vLLM's fields; it applies no generation config."""

    name = "reference"
    reasoning_field: ClassVar[str | None] = "reasoning_content"
    neutral: ClassVar[dict[str, Any]] = {}
