"""Where a request has the settings that users name alike for every engine, such as ``top_k`` or ``tools``."""

from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol, runtime_checkable

from bakeoff.workloads.types import Turn

Carrier = Callable[[dict[str, Any], Any], None]
"""Writes a value into a request's body."""
Carriers = Mapping[str, Carrier]
"""Carriers by the name of the setting."""


@runtime_checkable
class CarriesFields(Protocol):
    """A dialect that has fields for settings of requests."""

    def carriers(self, turn: Turn) -> Carriers:
        """The settings that a request for this turn can carry; a chat can carry more than a completion."""
        ...


@runtime_checkable
class TakesTokenIds(Protocol):
    """A dialect whose completions may take and give token ids."""

    @property
    def takes_token_ids(self) -> bool:
        """Whether ``prompt`` may be a list of token ids, and answers have the ids of their tokens."""
        ...


def at(path: str) -> Carrier:
    """Carrier of a field by its path, with dots for nesting."""
    *outer, name = path.split(".")

    def carry(body: dict[str, Any], value: Any) -> None:  # noqa: ANN401  (any JSON value)
        for key in outer:
            body = body.setdefault(key, {})
        body[name] = value

    return carry


class Sampled:
    """Carrier of a temperature in a body that asks for greedy decoding by ``top_k`` too; names of top-level fields."""

    def __init__(self, temperature: str, top_k: str) -> None:
        self._temperature, self._top_k = temperature, top_k

    def __call__(self, body: dict[str, Any], value: float) -> None:
        """Write the temperature."""
        body[self._temperature] = value
        self.settle(body, ())

    def settle(self, body: dict[str, Any], given: Container[str]) -> None:
        """Remove our ``top_k`` from a body with a temperature, unless the user has ``given`` one."""
        if body.get(self._temperature) and self._top_k not in given and "top_k" not in given:
            body.pop(self._top_k, None)


def same(*names: str) -> dict[str, Carrier]:
    """Carriers of top-level fields that have our names."""
    return {name: at(name) for name in names}


OFFICIAL = same("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop")
"""OpenAI's own settings, in chats and completions."""
OFFICIAL_CHAT = same("reasoning_effort", "tools", "tool_choice")
EXTENDED = same("top_k", "min_p", "repetition_penalty")
"""Settings that engines with the OpenAI format add."""
EXTENDED_CHAT = same("chat_template_kwargs")
