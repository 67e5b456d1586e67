"""How long a step of decodes takes without prompts beside it, by linear regression on the trial's own steps.

A decode step reads the weights once and the keys and values of every token before: its duration is fitted as
``a + b · rows + c · context`` by least squares, over the steps without a prompt. Coefficients below zero, which noise
can give, are left out and the others fitted again.
"""

import msgspec
import numpy as np

MIN_STEPS = 8
"""Steps without prompts that a fit needs."""


class DecodeCost(msgspec.Struct, frozen=True):
    """The fitted duration of a decode step in nanoseconds.

    Attributes:
        base_ns: of a step.
        row_ns: for each token that it computes.
        context_ns: for each token in the caches that it reads.
        steps: number of steps behind the fit.
        residual_share: root of the mean square residual, as a share of the mean duration.
    """

    base_ns: float
    row_ns: float
    context_ns: float
    steps: int
    residual_share: float

    def expected_ns(self, rows: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Expected duration of steps with these many rows and tokens of context."""
        return self.base_ns + self.row_ns * rows + self.context_ns * context


def fit(rows: np.ndarray, context: np.ndarray, duration_ns: np.ndarray) -> DecodeCost | None:
    """Fit the cost on steps without prompts; None if there are fewer than :data:`MIN_STEPS`.

    Args:
        rows: tokens computed in each step.
        context: tokens in the caches that each step read.
        duration_ns: of each step.
    """
    if len(rows) < MIN_STEPS:
        return None
    columns = np.stack([np.ones(len(rows)), rows, context], axis=1).astype(np.float64)
    kept = [0, *(column for column in (1, 2) if np.ptp(columns[:, column]) > 0)]
    while True:
        found, *_ = np.linalg.lstsq(columns[:, kept], duration_ns.astype(np.float64), rcond=None)
        negative = [column for column, value in zip(kept, found, strict=True) if value < 0]
        if not negative or len(kept) == 1:
            break
        kept.remove(negative[-1])
    coefficients = np.zeros(3)
    coefficients[kept] = found
    residuals = duration_ns - columns @ coefficients
    share = float(np.sqrt(np.mean(residuals**2)) / max(1.0, float(np.mean(duration_ns))))
    return DecodeCost(*coefficients.tolist(), steps=len(rows), residual_share=share)
