"""Finds the figures that a client reported wrong, from the server's record of the same load."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.peers.running import Trial

_RELATIVE, _ABSOLUTE_MS = 0.03, 0.1
"""A latency is wrong if its error exceeds both; traps cause far larger errors, and noise smaller ones."""


def often_wrong(trials: Sequence[Trial]) -> list[str]:
    """Descriptions of the figures that are wrong in more than half of the rounds, each from the last wrong round."""
    wrong = [figure for trial in trials for figure in wrong_figures(trial).items()]
    rounds = Counter(name for name, _ in wrong)
    return [text for name, text in dict(wrong).items() if rounds[name] > len(trials) / 2]


def wrong_figures(trial: Trial) -> dict[str, str]:
    """Name → description, such as ``TTFT 1.50 ms (true 200.00)``; a figure that is not reported is not wrong."""
    figures, truth = trial.figures, trial.truth
    latencies = [
        ("TTFT", figures.ttft_mean_ms, truth.latencies.ttft_mean_ms),
        ("ITL", figures.itl_mean_ms, truth.latencies.itl_mean_ms),
        ("TPOT", figures.tpot_mean_ms, truth.latencies.tpot_mean_ms),
    ]
    counts = [
        ("ok", figures.ok, truth.sound),
        ("failed", figures.failed, truth.requests - truth.sound),
        ("output tokens", figures.output_tokens, truth.tokens),
    ]
    wrong = {
        name: f"{name} {reported:.2f} ms (true {true:.2f})"
        for name, reported, true in latencies
        if _off(reported, true)
    }
    return wrong | {
        name: f"{name} {reported} (true {true})"
        for name, reported, true in counts
        if reported is not None and reported != true
    }


def _off(reported_ms: float | None, true_ms: float | None) -> bool:
    if reported_ms is None or true_ms is None:
        return False
    return not abs(reported_ms - true_ms) <= max(_RELATIVE * true_ms, _ABSOLUTE_MS)  # not <=: a NaN is wrong
