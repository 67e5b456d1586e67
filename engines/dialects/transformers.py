"""The dialect of ``transformers serve``.

It answers 422 to fields that it does not know, always sends usage on its last chunk, never sends ``[DONE]``, and
sends the role chunk before the prefill. The exact length is forced through ``generation_config``, a JSON string that
replaces the model's own: leaving ``eos_token_id`` out would not disable the end of sequence, -1 does.
"""

from typing import Any

import msgspec

from engines.dialects.openai import OpenAiDialect
from workloads.types import Turn


class TransformersDialect(OpenAiDialect):
    """Exact lengths by a generation config; counts from usage."""

    name = "transformers"
    exact_length = True

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens."""
        config = {"do_sample": False, "eos_token_id": -1, "max_new_tokens": turn.output_tokens}
        return {"max_tokens": turn.output_tokens, "generation_config": msgspec.json.encode(config).decode()}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:  # noqa: ARG002
        """Nothing: the server sends none."""
        return {}

    def answer_format(self, turn: Turn) -> dict[str, Any]:  # noqa: ARG002
        """Nothing: the server refuses the field."""
        return {}
