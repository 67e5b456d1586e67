"""What the processes of `front_end.py` must agree on."""

import dataclasses

WARM_UP_STEPS = 20
PAUSE_S = 0.6
"""Between the parts of a round."""
SILENCE_S = 0.3
"""Without a byte for so long, the client takes a part to be over."""

_PART_S = 2.0
_STEP_S_PER_STREAM = 150e-6  # well above what a token costs, or the tokens of several steps would share a write


@dataclasses.dataclass(frozen=True)
class Plan:
    """One round of measurement.

    Attributes:
        num_streams: requests that run side by side.
    """

    num_streams: int

    @property
    def interval_s(self) -> float:
        """Between two steps."""
        return max(0.004, _STEP_S_PER_STREAM * self.num_streams)

    @property
    def num_steps(self) -> int:
        """Steps that are measured."""
        return round(_PART_S / self.interval_s)
