"""Which of the figures that a client reported are wrong, by the server's record of the same load."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.peers.running import Trial

_RELATIVE, _ABSOLUTE_MS = 0.03, 0.1
"""A latency is wrong when it is off by more than both; traps are off by far more, a quiet machine's noise by less."""


def often_wrong(trials: Sequence[Trial]) -> list[str]:
    """Figures that are wrong in more than half of the rounds, as they were in the last of those."""
    found = [wrong for trial in trials for wrong in wrong_figures(trial).items()]
    times = Counter(name for name, _ in found)
    return [words for name, words in dict(found).items() if times[name] > len(trials) / 2]


def wrong_figures(trial: Trial) -> dict[str, str]:
    """By name, ``TTFT 1.50 ms (true 200.00)`` and the like; a figure that the client does not give is not wrong."""
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
    wrong = {name: f"{name} {said:.2f} ms (true {true:.2f})" for name, said, true in latencies if _off(said, true)}
    return wrong | {
        name: f"{name} {said} (true {true})" for name, said, true in counts if said is not None and said != true
    }


def _off(said_ms: float | None, true_ms: float | None) -> bool:
    if said_ms is None or true_ms is None:
        return False
    return not abs(said_ms - true_ms) <= max(_RELATIVE * true_ms, _ABSOLUTE_MS)  # not <=: a NaN is wrong
