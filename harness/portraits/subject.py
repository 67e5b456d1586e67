"""A drawn workload with what its reader must know of how it was drawn."""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from workloads.portrait import Portrait
from workloads.presets import Anchor


class Subject(msgspec.Struct, frozen=True):
    """What is shown.

    Attributes:
        portrait: the drawn sample.
        target: what the user named: a workload or a file.
        seed: of the sample.
        sessions: how many were asked for.
        given: the workload's options, as the user wrote them.
        options: the same as data.
        judged: whether its anchors can be held against it: not where its lengths were scaled or cut.
        tokenizer: folder of what counted the prompts; None where they did not have to be written.
    """

    portrait: Portrait
    target: str
    seed: int
    sessions: int
    given: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    judged: bool = True
    tokenizer: str | None = None

    def met(self, anchor: Anchor) -> bool | None:
        """Whether an anchor is met; None where that cannot be said."""
        return self.portrait.met(anchor) if self.judged else None

    @property
    def command(self) -> str:
        """What draws the same again."""
        options = [word for pair in self.given for word in ("--option", pair)]
        tokenizer = ["--tokenizer", self.tokenizer] if self.tokenizer else []
        words = [self.target, *options, "--seed", str(self.seed), "--sessions", str(self.sessions), *tokenizer]
        return f"bakeoff workloads show {shlex.join(words)}"
