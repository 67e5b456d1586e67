"""Positions at which the drawn token depends only on scores, parameters and the position in the answer."""

from typing import Protocol

import msgspec

from bakeoff.reference_engine.core.request import SamplingParams


class Place(Protocol):
    """A request, for the token after its last one, or a `LaterPlace`."""

    @property
    def sampling(self) -> SamplingParams:
        """How the token is chosen; parameters that `SamplingParams.needs_host` counts are ignored."""
        ...

    @property
    def num_sampled(self) -> int:
        """Output tokens before it."""
        ...


class LaterPlace(msgspec.Struct, frozen=True, gc=False):
    """A place after drafts; see `Place`."""

    sampling: SamplingParams
    num_sampled: int
