"""Mixes of models: which of several models, or adapters such as LoRA, the requests of a session are sent to."""

import itertools
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated

import msgspec

_RANGE = 1 << 64


class ModelShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model of the mix."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    """As requests name it; a LoRA adapter has a name of its own."""
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """Its share of the sessions, relative to the others."""


class ModelMix:
    """Chooses models by their weights: equal sessions have equal models, whatever the engine.

    Args:
        shares: at least one.
        seed: of the experiment.
    """

    def __init__(self, shares: Sequence[ModelShare], seed: str) -> None:
        self._names = [share.name for share in shares]
        total = sum(share.weight for share in shares)
        self._ends = [end / total for end in itertools.accumulate(share.weight for share in shares)]
        self._seed = seed

    def of(self, session: str) -> str:
        """The model of a session."""
        digest = blake2b(f"{self._seed}\0{session}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / _RANGE
        return next((name for name, end in zip(self._names, self._ends, strict=True) if place < end), self._names[-1])
