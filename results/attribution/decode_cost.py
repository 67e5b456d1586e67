"""How long a step of decodes takes without prompts beside it, by linear regression on the trial's own steps.

A decode step reads the weights once, and the keys and values of every token before: its duration is fitted as
``a + b · rows + c · context`` over the steps without a prompt. Residuals beyond 1.345 robust standard deviations weigh
less (Huber 1964), so that a step that the machine held up changes nothing. Coefficients below zero, which noise can
give, are left out and the others fitted again.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

MIN_STEPS = 8
"""Steps without prompts that a fit needs."""
MAX_RESIDUAL_SHARE = 0.25
"""Median residual, as a share of the median duration, above which a fit is not used. In simulations without
interference noise makes at most 7 % of the E2E look like it up to here, and a part is mentioned from 10 % on; at a
residual of 35 % it makes up to 14 %."""
_HUBER = 1.345
_SIGMA_PER_MAD = 1.4826
_ITERATIONS = 30


class DecodeCost(msgspec.Struct, frozen=True):
    """The fitted duration of a decode step in nanoseconds.

    Attributes:
        base_ns: of a step.
        row_ns: for each token that it computes.
        context_ns: for each token in the caches that it reads.
        steps: number of steps behind the fit.
        residual_share: median absolute residual, as a share of the median duration.
    """

    base_ns: float
    row_ns: float
    context_ns: float
    steps: int
    residual_share: float

    def expected_ns(self, rows: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Expected duration of steps with these many rows and tokens of context."""
        return self.base_ns + self.row_ns * rows + self.context_ns * context


def fit(rows: np.ndarray, context: np.ndarray, duration_ns: np.ndarray) -> DecodeCost | str:
    """Fit the cost on steps without prompts; the reason if they are too few, or too far from the fit.

    Args:
        rows: tokens computed in each step.
        context: tokens in the caches that each step read.
        duration_ns: of each step.
    """
    if len(rows) < MIN_STEPS:
        return f"only {len(rows)} steps decoded without a prompt, and {MIN_STEPS} are needed"
    columns = np.stack([np.ones(len(rows)), rows, context], axis=1).astype(np.float64)
    kept = [0, *(column for column in (1, 2) if np.ptp(columns[:, column]) > 0)]
    coefficients = _robust(columns, duration_ns, kept)
    while len(kept) > 1 and coefficients.min() < 0:
        kept.remove(int(coefficients.argmin()) or kept[-1])
        coefficients = _robust(columns, duration_ns, kept)
    share = float(np.median(np.abs(duration_ns - columns @ coefficients)) / np.median(duration_ns))
    if share > MAX_RESIDUAL_SHARE:
        return (
            f"half of the {len(rows):,} steps of decodes alone deviate from the fit by {100 * share:.0f} % of the "
            f"median duration or more; the limit is {100 * MAX_RESIDUAL_SHARE:.0f} %"
        )
    return DecodeCost(*coefficients.tolist(), steps=len(rows), residual_share=share)


def _robust(columns: np.ndarray, values: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    """Coefficients of all columns, 0 for those left out, by iteratively reweighted least squares."""
    used = columns[:, list(kept)]
    weights = np.ones(len(values))
    fitted = np.zeros(len(kept))
    for _ in range(_ITERATIONS):
        root = np.sqrt(weights)
        fitted, *_ = np.linalg.lstsq(used * root[:, None], values * root, rcond=None)
        size = np.abs(values - used @ fitted)
        sigma = max(_SIGMA_PER_MAD * float(np.median(size)), 1e-9)
        weights = np.minimum(1.0, _HUBER * sigma / np.maximum(size, 1e-12))
    coefficients = np.zeros(columns.shape[1])
    coefficients[list(kept)] = fitted
    return coefficients
