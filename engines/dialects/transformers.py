"""The dialect of ``transformers serve``: the OpenAI routes.

Its quirks, from ``transformers/cli/serving``: unknown fields get HTTP 422; usage is always in the last chunk;
``[DONE]`` is never sent; the role chunk precedes the prefill, so it does not mark the first token. The length is forced
by ``generation_config``, a JSON string that replaces the model's: ``eos_token_id`` -1 disables the end of sequence,
which omitting it would not.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects.fields import Carrier, Carriers, same
from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.workloads.types import Turn


class TransformersDialect(OpenAiDialect):
    """Exact lengths by a generation config; token counts from usage."""

    name = "transformers"
    exact_length = True

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens, or up to the model's own end."""
        if turn.ends_by_itself:
            return {"max_tokens": turn.output_tokens, "temperature": 0.0}
        config = {"do_sample": False, "eos_token_id": -1, "max_new_tokens": turn.output_tokens}
        return {"max_tokens": turn.output_tokens, "generation_config": msgspec.json.encode(config).decode()}

    def carriers(self, turn: Turn) -> Carriers:
        """Settings of the generation config, which replaces the model's; tools of chats."""
        of_chat = {} if turn.messages is None else same("tools")
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {**{name: _in_config(name) for name in names}, **same("seed"), **of_chat}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:  # noqa: ARG002
        """No fields: the server sends no log-probabilities."""
        return {}

    def answer_format(self, turn: Turn) -> dict[str, Any]:  # noqa: ARG002
        """No fields: the server refuses ``response_format``."""
        return {}


def _in_config(name: str) -> Carrier:
    """Carrier of a setting in the generation config; a temperature above 0 switches sampling on."""

    def carry(body: dict[str, Any], value: Any) -> None:  # noqa: ANN401  (a number)
        if "generation_config" not in body:
            body[name] = value
            return
        config = msgspec.json.decode(body["generation_config"])
        if name != "temperature":
            config[name] = value
        elif value:
            config |= {"do_sample": True, name: value}
        body["generation_config"] = msgspec.json.encode(config).decode()

    return carry
