"""Selections of the requests of a trial."""

from collections.abc import Sequence

from bakeoff.results.records import Outcome, Phase, RequestRecord, Window


def under_load(requests: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The requests of ramp, window and tail, without warm-up."""
    return [request for request in requests if request.phase is not Phase.WARMUP]


def planned_inside(requests: Sequence[RequestRecord], window: Window) -> list[RequestRecord]:
    """Requests planned within the window."""
    return [request for request in requests if window.holds(request.planned_ns)]


def has_failed(request: RequestRecord) -> bool:
    """Whether a request failed; a request cancelled by the client neither failed nor succeeded."""
    return request.outcome not in {Outcome.OK, Outcome.CANCELLED}


def prompt_length(request: RequestRecord) -> int | None:
    """Prompt tokens as counted by the engine, otherwise as planned; None if neither is known."""
    return request.prompt_tokens if request.prompt_tokens is not None else request.requested_input_tokens
