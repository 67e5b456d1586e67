"""Two sides of an experiment, one number per run."""

import numpy as np


def runs(*values: float) -> dict[int, float]:
    """Repeat → value."""
    return dict(enumerate(values))


def sides(
    rng: np.random.Generator, effect: float = 1.0, *, count: int = 8, cv: float = 0.02, shared: float = 0.0
) -> tuple[dict[int, float], dict[int, float]]:
    """Runs with noise of ``cv`` each, and noise that both runs of a repeat share."""
    common = rng.normal(0, shared, count)
    a, b = (np.exp(common + rng.normal(0, cv, count)) for _ in range(2))
    return dict(enumerate(a.tolist())), dict(enumerate((b * effect).tolist()))
