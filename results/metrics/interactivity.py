"""Normalised interactivity: the token rate that an agent sees from request to answer, queue and prefill included.

As InferenceX computes it for agent sessions (``pXX_e2e_norm_intvty``): the reciprocal of a percentile of normalised
latency, so p90 is the rate of a slow request. Failed requests are left out.
"""

from collections.abc import Callable

from bakeoff.results.metric import Better, Role, Unit
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.declaration import Needs, TrialData, TrialMetric, known
from bakeoff.results.metrics.percentiles import percentile
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.requests import Floats


def _latencies_s(data: TrialData) -> Floats:
    """Normalised latency of each successful request planned in the window."""
    return known(latency.normalized_latency_s(data.inside.ok))


def _why_absent(data: TrialData) -> str | None:
    return None if data.load.ints("turn").any() else "no session has several requests"


def _at(q: float) -> Callable[[TrialData], Value]:
    def of(data: TrialData) -> Value:
        if (why := _why_absent(data)) is not None:
            return absent(why)
        slow = percentile(data.once(_latencies_s), q)
        return Value(1 / slow.value) if slow.value else slow

    return of


INTERACTIVITY = {"interactivity_p50": 0.5, "interactivity_p90": 0.9}
"""Name and percentile of normalised latency of each metric."""
METRICS = tuple(
    TrialMetric(
        name=name,
        title=name.replace("_", " "),
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition=f"one over the p{100 * q:g} of normalised latency without failed requests, as InferenceX has it",
        observation="a successful request planned in the window, of sessions with several requests",
        roles=frozenset({Role.NEEDS_CAPACITY, Role.PER_TOKEN, Role.RATE_OF_ONE}),
        needs=Needs.PLANNED,
        of=_at(q),
        count=lambda data: 0 if _why_absent(data) else len(data.once(_latencies_s)),
    )
    for name, q in INTERACTIVITY.items()
)
