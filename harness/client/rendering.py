"""Renders chats for engines that take only text, with the model's own template, as an engine's chat route does."""

from collections.abc import Callable

import msgspec

from bakeoff.engines.dialects import Dialect, HttpRequest
from bakeoff.workloads import Tokenizer, Turn

Ask = Callable[..., HttpRequest]
"""Signature of :meth:`bakeoff.engines.dialects.Dialect.request`."""


def asking(dialect: Dialect, tokenizer: Tokenizer | None) -> Ask:
    """The function that encodes turns as requests in this dialect.

    Args:
        dialect: of the engine.
        tokenizer: the model's; without it turns are not rendered.
    """
    if dialect.takes_messages or tokenizer is None:
        return dialect.request

    def ask(turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        return dialect.request(written_out(turn, tokenizer), model, logprobs=logprobs)

    return ask


def written_out(turn: Turn, tokenizer: Tokenizer) -> Turn:
    """The turn as a completion; a turn that has a prompt is returned unchanged."""
    if turn.messages is None:
        return turn
    text = tokenizer.render_chat([{"role": message.role, "content": message.content} for message in turn.messages])
    ids = tokenizer.encode_prompt(text)
    first = tokenizer.decode(ids[:1])
    # Engines prepend a BOS token to every text: drop the one that the template has written.
    if len(ids) > turn.input_tokens and ids[:1] == ids[1:2] and first in tokenizer.special_tokens:
        text = text.removeprefix(first)
    return msgspec.structs.replace(turn, messages=None, prompt=text)
