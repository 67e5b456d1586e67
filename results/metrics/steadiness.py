"""Trend of a closed loop's throughput over its window.

Student's t of the slope of the tokens that arrived in six to ten batches of the window (batch means: Law and
Kelton, Simulation Modeling and Analysis, ch. 9). A batch lasts a turnover of a slot where the window is long enough, so
that batches share no requests; a slope counts if it is both significant and large.
"""

import math

import numpy as np

from bakeoff.results.records import Window
from bakeoff.results.requests import Requests
from bakeoff.results.statistics.distributions import t_tails

_MIN_BATCHES, _MAX_BATCHES = 6, 10
_MAX_P = 1e-3
_MIN_CHANGE = 0.2


def throughput_change(requests: Requests, window: Window, turnover_s: float) -> float | None:
    """Change of the token rate over the window relative to its mean; None without a significant trend.

    Args:
        requests: all under load.
        window: of the trial.
        turnover_s: mean time from one request of a slot to its next.
    """
    if window.length_s <= 0:
        return None
    turnovers = int(window.length_s / turnover_s) if turnover_s > 0 else _MAX_BATCHES
    batches = min(_MAX_BATCHES, max(_MIN_BATCHES, turnovers))
    edges = np.linspace(window.start_ns, window.end_ns, batches + 1)
    chunks = requests.chunks
    tokens, _ = np.histogram(chunks.ns.astype(np.float64), edges, weights=chunks.tokens.astype(np.float64))
    mean = float(tokens.mean())
    if not mean:
        return None
    x = np.arange(batches) - (batches - 1) / 2
    slope = float((x * tokens).sum() / (x * x).sum())
    change = slope * (batches - 1) / mean
    residual = tokens - mean - slope * x
    error = math.sqrt(float((residual * residual).sum()) / (batches - 2) / float((x * x).sum()))
    p_value = t_tails(slope / error, batches - 2) if error else 0.0
    return change if abs(change) >= _MIN_CHANGE and p_value <= _MAX_P else None
