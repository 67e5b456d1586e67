"""All metrics, collected from the modules that declare them."""

import difflib
from collections.abc import Collection, Container, Iterable, Iterator

from bakeoff.results.errors import NotComparable
from bakeoff.results.metric import Better, Metric, Role, Unit
from bakeoff.results.metrics import (
    answers,
    energy,
    interactivity,
    latency,
    machine,
    memory,
    reasoning,
    reuse,
    sessions,
    throughput,
)
from bakeoff.results.metrics.declaration import Latency, TrialMetric

DEFINITIONS, COMPARABLE = 4, 3
"""Version of the definitions, to be raised whenever one changes (a new metric needs no other), and the oldest version
whose stored values may be compared with those of today: what changed since is computed again from stored requests."""
LATENCIES: dict[str, Latency] = {one.key: one for one in (*latency.LATENCIES, *reasoning.LATENCIES)}
"""All latencies by their key, in display order."""
CATALOGUE: dict[str, TrialMetric] = {
    metric.name: metric
    for metric in (
        *(metric for one in LATENCIES.values() for metric in one.metrics()),
        *throughput.METRICS,
        *interactivity.METRICS,
        *reuse.METRICS,
        *sessions.METRICS,
        *reasoning.METRICS,
        *answers.METRICS,
        *memory.METRICS,
        *machine.METRICS,
        *energy.METRICS,
    )
}
"""All metrics of trials, in display order."""
FAMILIES: dict[str, TrialMetric] = {}
for _metric in CATALOGUE.values():
    FAMILIES.setdefault(_metric.family, _metric)
"""The first metric of each family, in display order."""
PERPLEXITY = Metric(
    "perplexity", "perplexity", Unit.COUNT, Better.LOWER, "exp of the mean of −ln p over the tokens of a text"
)
"""Metric of evaluations (``bakeoff models eval``), not of trials."""
COMPARED: dict[str, Metric] = {**CATALOGUE, PERPLEXITY.name: PERPLEXITY}
"""All metrics that a comparison can have: those of trials, and that of evaluations."""


def names_of(role: Role) -> tuple[str, ...]:
    """Names of the metrics with a role, in display order."""
    return tuple(name for name, metric in CATALOGUE.items() if role in metric.roles)


def require_known(names: Iterable[str]) -> list[str]:
    """The names, all of which are metrics of the catalogue.

    Raises:
        NotComparable: one is not.
    """
    chosen = list(names)
    if unknown := [name for name in chosen if name not in CATALOGUE]:
        raise NotComparable(unknown_metric(unknown[0], CATALOGUE))
    return chosen


def unknown_metric(name: str, known: Collection[str]) -> str:
    """``unknown metric 'itl'; did you mean itl_p50_s or itl_p90_s?``: the names that are near, or where all stand."""
    if len(known) <= _FEW:
        return f"unknown metric '{name}'; known: {', '.join(known)}"
    begun = [other for other in known if other.startswith(f"{name.lower()}_")]
    near = (begun or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5))[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/definitions.md lists all"
    return f"unknown metric '{name}'; {hint}"


HEADLINE = names_of(Role.HEADLINE)
"""The metrics compared by default, of a run without a GPU."""

_FEW = 5
"""Names up to which a message lists all."""
_OF_TOKENS = frozenset({"ttft_p50_s", "itl_p50_s", "tpot_p50_s"})
_WHOLE = ("e2e_p50_s", "prompt_tokens_per_s")
"""Metrics that streamed answers have, and those of answers that come as a whole instead."""
_WITH_TAILS = ("ttft", "first_visible", "itl", "e2e")
"""Latencies whose tails are summarised: a user waits for single tokens and answers, TPOT is a mean of each."""


def headline(known: Container[str]) -> tuple[str, ...]:
    """Return the metrics that a run is compared by; memory is GPU memory if any engine used it.

    Args:
        known: names of metrics that any cell of the run has.
    """
    names = HEADLINE
    if "e2e_p50_s" in known and "ttft_p50_s" not in known:  # the answers are not streamed
        names = (*_WHOLE, *(name for name in HEADLINE if name not in _OF_TOKENS))
        names = tuple(name for name in names if name != "output_tokens_per_s" or name in known)
    memory = "peak_gpu_bytes" if "peak_gpu_bytes" in known else "peak_host_bytes"
    chosen = (name for name in names if name in known or Role.IF_PRESENT not in CATALOGUE[name].roles)
    return tuple(memory if name == "peak_host_bytes" else name for name in chosen)


def summarised(known: Container[str]) -> tuple[str, ...]:
    """Return the metrics of a summary: behind a median its p90, and its p99 where there are observations enough."""
    return tuple(each for name in headline(known) for each in (name, *_tails(name, known)))


def _tails(name: str, known: Container[str]) -> Iterator[str]:
    latency = CATALOGUE[name].latency
    if latency in _WITH_TAILS:
        yield f"{latency}_p90_s"
        yield from (far for far in [f"{latency}_p99_s"] if far in known)
