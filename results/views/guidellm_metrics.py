"""The ``metrics`` of GuideLLM's report: every summary by status, over its measured period or without limits."""

from collections.abc import Callable, Iterable
from typing import Any

from bakeoff.results.records import Load, Outcome, RequestRecord
from bakeoff.results.views.distribution import Summary, Weighted, in_flight, plain, rates
from bakeoff.results.views.guidellm import Call, itl_summary, tpot_summary, window

STATUSES = ("successful", "incomplete", "errored", "total")
_KINDS = {
    "text": ("tokens", "words", "characters"),
    "image": ("tokens", "images", "pixels", "bytes"),
    "video": ("tokens", "frames", "seconds", "bytes"),
    "audio": ("tokens", "samples", "seconds", "bytes"),
    "tool_call": ("tokens", "mixed_tokens", "count"),
}
_SIDES = tuple(
    f"{side}{suffix}" for side in ("input", "output", "total") for suffix in ("", "_per_second", "_concurrency")
)

Groups = dict[str, list[Call]]
"""Requests by status, ``total`` included."""
Statuses = dict[str, Summary]
"""Summary by status."""
Amount = Callable[[Call], float]
"""Amount of a quantity in one request."""


def grouped(all_calls: list[Call]) -> Groups:
    """Requests by :data:`STATUSES`."""
    cancelled = [call for call in all_calls if call.record.outcome is Outcome.CANCELLED]
    good = [call for call in all_calls if call.success]
    bad = [call for call in all_calls if not call.success and call.record.outcome is not Outcome.CANCELLED]
    return dict(zip(STATUSES, (good, cancelled, bad, all_calls), strict=True))


def metrics(groups: Groups, load: Load) -> dict[str, Any]:
    """All metrics; schedule delays only for open loops."""
    table = _Table(groups, window(groups["total"]))
    return {
        "request_totals": {status: len(group) for status, group in groups.items()},
        **_latencies(table, scheduled=load.concurrency is None),
        **_counts(table),
        **_flows(table),
        **{kind: {name: dict.fromkeys(_SIDES) for name in names} for kind, names in _KINDS.items()},
        "text": _text(groups),
        "slo_determined_requests": 0,
    }


def late_s(call: Call) -> float:
    """Send time minus planned time, in seconds."""
    return call.start_s - call.record.planned_ns / 1e9


def lines(record: RequestRecord) -> int:
    """Lines of the stream that the tool would have read: chunks, separate usage, the end marker."""
    alone = record.usage_ns is not None and not record.usage_in_choice
    return len(record.chunk_ns) + len(record.empty_chunk_ns) + alone + (record.last_event_ns is not None)


class _Table:
    """Folds the requests of each status into summaries, by status.

    Args:
        groups: requests by status.
        ends: the measured period; None for no limits.
    """

    def __init__(self, groups: Groups, ends: tuple[float, float] | None) -> None:
        self._groups = groups
        self._ends = ends

    def by_status(self, fold: Callable[[list[Call]], Summary]) -> Statuses:
        """Summary of each status by ``fold``."""
        return {status: fold(group) for status, group in self._groups.items()}

    def values(self, value: Amount) -> Statuses:
        """Summary of one value per request."""
        return self.by_status(lambda group: plain(value(call) for call in group))

    def flow(self, events: Callable[[Call], Iterable[Weighted]]) -> Statuses:
        """Summary of event rates."""
        return self.by_status(lambda group: rates([event for call in group for event in events(call)], self._ends))

    def busy(self, weight: Amount) -> Statuses:
        """Summary of the amount in flight."""
        return self.by_status(lambda group: in_flight([(c.start_s, c.end_s, weight(c)) for c in group], self._ends))


def _latencies(table: _Table, *, scheduled: bool) -> dict[str, Any]:
    unknown = table.values(lambda _: 0.0)  # as it writes a websocket's times for what came over HTTP
    return {
        "request_latency": table.values(lambda call: call.latency_s),
        "request_dispatch_delay": table.values(late_s) if scheduled else None,
        "request_scheduled_latency": table.values(lambda c: late_s(c) + c.latency_s) if scheduled else None,
        "time_to_first_token_ms": table.values(lambda call: call.ttft_ms),
        "time_to_first_output_token_ms": table.values(lambda call: call.ttft_ms),
        "time_per_output_token_ms": table.by_status(tpot_summary),
        "inter_token_latency_ms": table.by_status(itl_summary),
        "time_to_last_round_trip_ms": unknown,
        "avg_round_trip_time_ms": unknown,
    }


def _counts(table: _Table) -> dict[str, Any]:
    return {
        "request_streaming_iterations_count": table.values(lambda call: float(lines(call.record))),
        "prompt_token_count": table.values(_prompt),
        "output_token_count": table.values(_output),
        "total_token_count": table.values(_total),
        "output_tokens_per_iteration": table.by_status(
            lambda group: plain(n for c in group for _, n in c.token_events)
        ),
        "iter_tokens_per_iteration": table.by_status(
            lambda group: plain(n for c in group for _, n in c.token_events[1:])
        ),
    }


def _flows(table: _Table) -> dict[str, Any]:
    return {
        "requests_per_second": table.flow(lambda call: [(call.end_s, 1.0)]),
        "request_concurrency": table.busy(lambda _: 1.0),
        "prompt_tokens_per_second": table.flow(lambda call: [_prompt_event(call)]),
        "output_tokens_per_second": table.flow(lambda call: call.token_events),
        "tokens_per_second": table.flow(lambda call: [_prompt_event(call), *call.token_events]),
    }


def _text(groups: Groups) -> dict[str, Any]:
    """Tokens, words and characters of the answers; of prompts only tokens are known."""
    return {
        "tokens": _sides(groups, input=[_prompt], output=[_output], total=[_prompt, _output]),
        "words": _sides(groups, output=[lambda call: float(len(call.record.text.split()))]),
        "characters": _sides(groups, output=[lambda call: float(len(call.record.text))]),
    }


def _sides(groups: Groups, **sides: list[Amount]) -> dict[str, Any]:
    """Amounts of each request, their rates and the amounts in flight, without limits of time.

    A total is not a sum: its sample contains prompts and answers.
    """
    table = _Table(groups, None)
    rows: dict[str, Any] = dict.fromkeys(_SIDES)
    for name, amounts in sides.items():
        rows[name], rows[f"{name}_per_second"], rows[f"{name}_concurrency"] = _side(table, amounts)
    return rows


def _side(table: _Table, amounts: list[Amount]) -> tuple[Statuses, Statuses, Statuses]:
    return (
        table.by_status(lambda group: plain(amount(call) for amount in amounts for call in group)),
        table.flow(lambda call: [(call.end_s, amount(call)) for amount in amounts]),
        table.by_status(
            lambda group: in_flight([(c.start_s, c.end_s, amount(c)) for amount in amounts for c in group])
        ),
    )


def _prompt(call: Call) -> float:
    return float(call.prompt_tokens or 0)


def _output(call: Call) -> float:
    return float(call.output_tokens or 0)


def _total(call: Call) -> float:
    return _prompt(call) + _output(call)


def _prompt_event(call: Call) -> tuple[float, float]:
    """The prompt as an event at the first token, as the tool assumes."""
    return (call.end_s if call.first_s is None else call.first_s, _prompt(call))
