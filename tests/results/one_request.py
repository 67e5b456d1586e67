"""Metrics of single requests: what the functions over columns give for one."""

import math
from collections.abc import Callable, Iterable

from bakeoff.results.metrics import latency, reasoning, throughput
from bakeoff.results.records import RequestRecord, Slo, Window
from bakeoff.results.requests import Floats, Places, Requests


def _of_one(metric: Callable[[Requests], Floats]) -> Callable[[RequestRecord], float | None]:
    def of_one(request: RequestRecord) -> float | None:
        (value,) = metric(Requests([request])).tolist()
        return None if math.isnan(value) else value

    return of_one


def _values(
    gaps: Callable[[Requests, Window | None], tuple[Floats, Places]],
) -> Callable[..., list[float]]:
    def values(requests: Iterable[RequestRecord], window: Window | None = None) -> list[float]:
        return gaps(Requests(requests), window)[0].tolist()

    return values


ttft_s, ttft_from_send_s = _of_one(latency.ttft_s), _of_one(latency.ttft_from_send_s)
first_visible_s, e2e_s = _of_one(latency.first_visible_s), _of_one(latency.e2e_s)
tpot_s, normalized_latency_s = _of_one(latency.tpot_s), _of_one(latency.normalized_latency_s)
send_lag_s, dial_s = _of_one(latency.send_lag_s), _of_one(latency.dial_s)
thinking_s = _of_one(reasoning.thinking_s)
reasoning_tpot_s, visible_tpot_s = _of_one(reasoning.reasoning_tpot_s), _of_one(reasoning.visible_tpot_s)
itl_s, chunk_gaps_s = _values(latency.itl_s), _values(latency.chunk_gaps_s)


def meets(request: RequestRecord, slo: Slo) -> bool:
    return bool(throughput.meets(Requests([request]), slo)[0])
