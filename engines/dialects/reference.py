"""The reference engine's dialect: OpenAI with forced lengths and token ids (vLLM's field names)."""

from typing import Any

from engines.dialects.openai import OpenAiDialect
from workloads.types import Turn


class ReferenceDialect(OpenAiDialect):
    """Exact lengths by ``ignore_eos`` and ``min_tokens``; exact counts by ``return_token_ids``."""

    name = "reference"
    exact_length = True

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens, with their ids."""
        forced = {"ignore_eos": True, "min_tokens": turn.output_tokens, "return_token_ids": True}
        return {**super().sampling(turn), **forced}

    def answer_format(self, turn: Turn) -> dict[str, Any]:  # noqa: ARG002
        """Nothing: the engine cannot hold answers to a schema, and their length is forced."""
        return {}
