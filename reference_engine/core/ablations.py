"""What `--ablation` takes out of the engine or replaces, to be compared with, and what each excludes."""

import dataclasses
from typing import NamedTuple

from bakeoff.reference_engine.errors import ConfigError

FLAG = "--ablation"
_SLOWEST = 10.0
SPELLINGS = (
    "static_batching, contiguous_cache (memory for the longest sequence at once), heavy_hitter:TOKENS:HEAVY (a cache "
    "that keeps TOKENS, HEAVY of them by attention, else the latest), streaming_sinks (right before the window), "
    f"residual_drafts (more accepted, other answers), slow:SHARE (to test gates; 0 to {_SLOWEST:g})"
)


class Budget(NamedTuple):
    """Tokens that each layer and KV head keeps.

    Attributes:
        total: all of them.
        heavy: those that got the most attention so far; the others are the latest.
    """

    total: int
    heavy: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ablations:
    """The ablations of an engine; by default none.

    Attributes:
        static_batching: padded batches, in which all requests wait for the last.
        contiguous_cache: memory for the longest sequence at once, in place of blocks as they are needed.
        heavy_hitter: an evicting KV cache (H2O), which shows the loss of quality and frees no memory.
        streaming_sinks: `--attention-sinks` are seen right before the window (StreamingLLM), with which a text may be
            longer than the model was made for.
        residual_drafts: residual rejection in place of equal samples: more drafts of a model are accepted, answers have
            the same distribution but are others.
        slow: how much longer the model takes, as a share, to test regression gates; 0.1 waits a tenth more.
    """

    static_batching: bool = False
    contiguous_cache: bool = False
    heavy_hitter: Budget | None = None
    streaming_sinks: bool = False
    residual_drafts: bool = False
    slow: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Ablations":
        """Read names with commas between them, each with its numbers after colons.

        Raises:
            ConfigError: there is no such ablation, or its numbers are wrong.
        """
        found: dict[str, bool | float | Budget] = {}
        for part in filter(None, text.split(",")):
            name, *numbers = part.split(":")
            value = _value(name, numbers)
            if value is None or name in found:
                raise ConfigError(f"{FLAG} {part} is not among these, each given once: {SPELLINGS}")
            found[name] = value
        return cls(**found)  # pyright: ignore[reportArgumentType]  (each value by its name)

    @property
    def flag_without_forks(self) -> str | None:
        """The setting under which sequences cannot share blocks; None if they can.

        Under a budget, forks would drop each other's tokens; in contiguous memory they would write into each other's
        run.
        """
        if self.heavy_hitter:
            return f"{FLAG} heavy_hitter"
        return f"{FLAG} contiguous_cache" if self.contiguous_cache else None


def _value(name: str, numbers: list[str]) -> bool | float | Budget | None:
    """What a part of the option gives to the field of its name; None if it is not one of `SPELLINGS`."""
    try:
        if name == "heavy_hitter":
            total, heavy = map(int, numbers)
            return Budget(total, heavy) if 0 <= heavy < total else None
        if name == "slow":
            (share,) = map(float, numbers)
            return share if 0 <= share <= _SLOWEST else None
    except ValueError:  # another number of them, or no numbers
        return None
    is_plain = any(field.name == name for field in dataclasses.fields(Ablations))
    return True if is_plain and not numbers else None


EXCLUDED = {
    "static_batching": {"--speculation": "its batches advance in lockstep"},
    "contiguous_cache": {
        "--enable-prefix-caching": "every sequence has memory of its own, so nothing can be shared",
        "--attention-window": "it cannot give memory back while a sequence grows",
    },
    "heavy_hitter": {
        "--enable-prefix-caching": "it hides tokens of a prompt by what followed them, so nothing can be shared",
        "--attention-window": "both decide what stays in sight",
        "--tensor-parallel-size": "it weighs tokens by all heads that share a key",
        "--context-parallel-size": "it weighs tokens by those that follow, which other processes may have",
        "--batch-invariant": "its results depend on the batch",
        "--speculation": "the attention of wrong drafts would count",
    },
}
"""Settings that an ablation excludes, with the reason."""
