"""Rates of a closed loop, from the time that given requests took instead of from what fell inside a window.

A closed loop of ``c`` sessions always has ``c`` sessions in progress, so by Little's law it serves ``c`` requests per
mean cycle: the time from the end of a session's previous request to the end of this one, its pause included (Little,
Operations Research 9 (1961), 383-387). So requests with cycles ``t_1…t_n`` took ``Σ t / c`` seconds, and tokens and
requests over that time are rates. They do not depend on where a window cuts requests off, and two engines can be
compared over equal requests.
"""

from collections.abc import Iterable, Sequence

from bakeoff.results.metrics import throughput
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Outcome, RequestRecord, Slo, Window
from bakeoff.results.units import NS_PER_S


def cycles_ns(load: Sequence[RequestRecord], inside: Iterable[RequestRecord]) -> dict[int, int]:
    """Nanoseconds from the end of the session's previous request to the end of this one, by the request's index.

    The first request in the log of a session that was in progress when the load began has no known cycle, and requests
    of a session whose agents work at once have none.

    Args:
        load: all requests under load.
        inside: the requests in question.
    """
    by_index = {request.index: request for request in load}
    cycles: dict[int, int] = {}
    for request in inside:
        before = by_index.get(request.index - 1)
        if request.parents is not None:
            continue
        if request.turn == 0:
            cycles[request.index] = request.ended_ns - request.planned_ns
        elif before is not None and (before.session, before.turn) == (request.session, request.turn - 1):
            cycles[request.index] = request.ended_ns - before.ended_ns
    return cycles


def closed_loop_rates(requests: Sequence[RequestRecord], took_s: float, slo: Slo) -> dict[str, Value]:
    """Compute the rates of a closed loop over requests.

    Args:
        requests: those that count.
        took_s: time that they took: the sum of their cycles over the number of sessions in progress.
        slo: SLO of the experiment.
    """
    if took_s <= 0:
        return dict.fromkeys(_RATES, absent("the requests took no time"))
    took = Window(0, round(took_s * NS_PER_S))
    met = sum(throughput.meets(request, slo) for request in requests)
    return {
        "output_tokens_per_s": Value(sum(request.total_chunk_tokens for request in requests) / took_s),
        "prompt_tokens_per_s": throughput.prompt_tokens_per_s(requests, took, _whole),
        "uncached_prompt_tokens_per_s": throughput.uncached_prompt_tokens_per_s(requests, took, _whole),
        "requests_per_s": throughput.requests_per_s(requests, took, _whole),
        "goodput_per_s": absent(throughput.NO_SLO) if slo == Slo() else Value(met / took_s),
    }


_RATES = (
    "output_tokens_per_s", "prompt_tokens_per_s", "uncached_prompt_tokens_per_s", "requests_per_s", "goodput_per_s",
)  # fmt: skip


def _whole(request: RequestRecord, _: Window) -> float:
    return float(request.outcome is Outcome.OK)
