"""Timing that the processes of `front_end.py` share."""

import dataclasses

WARM_UP_STEPS = 20
PAUSE_S = 0.6
"""Pause between the parts of a round."""
SILENCE_S = 0.3
"""After this long without a byte, the client considers a part finished."""

_PART_S = 2.0
_STEP_S_PER_STREAM = 150e-6  # well above the cost of a token, else tokens of several steps would share a write


@dataclasses.dataclass(frozen=True)
class Plan:
    """One round of measurement.

    Attributes:
        num_streams: concurrent requests.
    """

    num_streams: int

    @property
    def interval_s(self) -> float:
        """Seconds between two steps."""
        return max(0.004, _STEP_S_PER_STREAM * self.num_streams)

    @property
    def num_steps(self) -> int:
        """Number of measured steps."""
        return round(_PART_S / self.interval_s)
