"""Chats for engines that take only text: the model's own template writes them out, as the engine's chat route would."""

from collections.abc import Callable

import msgspec

from engines.dialects import Dialect, HttpRequest
from workloads import Tokenizer, Turn

Ask = Callable[..., HttpRequest]
"""As :meth:`engines.dialects.Dialect.request`."""


def asking(dialect: Dialect, tokenizer: Tokenizer | None) -> Ask:
    """How a turn becomes a request in this dialect.

    Args:
        dialect: of the engine.
        tokenizer: the model's; without it turns stay as they are.
    """
    if dialect.takes_messages or tokenizer is None:
        return dialect.request

    def ask(turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        return dialect.request(written_out(turn, tokenizer), model, logprobs=logprobs)

    return ask


def written_out(turn: Turn, tokenizer: Tokenizer) -> Turn:
    """The turn as a completion; one that has a prompt stays as it is.

    Engines put before every text what the model wants there: a template that writes the same itself loses it here.
    """
    if turn.messages is None:
        return turn
    text = tokenizer.render_chat([{"role": message.role, "content": message.content} for message in turn.messages])
    ids = tokenizer.encode_prompt(text)
    first = tokenizer.decode(ids[:1])
    if len(ids) > turn.input_tokens and ids[:1] == ids[1:2] and first in tokenizer.special_tokens:
        text = text.removeprefix(first)
    return msgspec.structs.replace(turn, messages=None, prompt=text)
