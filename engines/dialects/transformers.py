"""The dialect of ``transformers serve``: the OpenAI routes.

Its quirks, from ``transformers/cli/serving``: unknown fields get HTTP 422; usage is always in the last chunk;
``[DONE]`` is never sent; the role chunk precedes the prefill, so it does not mark the first token. The length is forced
by ``generation_config``, a JSON string that replaces the model's: ``eos_token_id`` -1 disables the end of sequence,
which omitting it would not.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.workloads.types import Turn


class TransformersDialect(OpenAiDialect):
    """Exact lengths by a generation config; token counts from usage."""

    name = "transformers"
    exact_length = True

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens."""
        config = {"do_sample": False, "eos_token_id": -1, "max_new_tokens": turn.output_tokens}
        return {"max_tokens": turn.output_tokens, "generation_config": msgspec.json.encode(config).decode()}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:  # noqa: ARG002
        """No fields: the server sends no log-probabilities."""
        return {}

    def answer_format(self, turn: Turn) -> dict[str, Any]:  # noqa: ARG002
        """No fields: the server refuses ``response_format``."""
        return {}
