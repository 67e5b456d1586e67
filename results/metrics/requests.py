"""Selections of the requests of a trial."""

from collections.abc import Iterable, Sequence

import numpy as np

from bakeoff.results.records import Outcome, RequestRecord
from bakeoff.results.requests import Floats, Requests


def calls_before(requests: Sequence[RequestRecord]) -> list[int | None]:
    """Position of the previous call of each request's agent; None if there is none.

    Args:
        requests: in the order in which they were sent.
    """
    before: list[int | None] = []
    # Sessions of ramp, window and tail may have one name, and so may those of a ramp that began again.
    last: dict[tuple[str, str, int, str], int] = {}
    for number, request in enumerate(requests):
        key = (request.phase, request.session, request.cycle, request.agent)
        place = last.get(key)
        before.append(place if place is not None and requests[place].turn < request.turn else None)
        last[key] = number
    return before


def sessions_of(requests: Iterable[RequestRecord]) -> list[list[RequestRecord]]:
    """The requests of each session, in the order of their turns.

    A trial may send one session of a trace several times, under the same name; each time its requests have numbers of
    their own in a row, which grow no faster than their turns.
    """
    sessions: list[list[RequestRecord]] = []
    before: RequestRecord | None = None
    for request in sorted(requests, key=lambda request: request.index):
        if before is not None and _is_next(before, request):
            sessions[-1].append(request)
        else:
            sessions.append([request])
        before = request
    return sessions


def _is_next(before: RequestRecord, request: RequestRecord) -> bool:
    same = (before.session, before.cycle, before.phase) == (request.session, request.cycle, request.phase)
    return same and request.index - before.index <= request.turn - before.turn


def has_failed(request: RequestRecord) -> bool:
    """Whether a request failed; a request cancelled by the client neither failed nor succeeded."""
    return request.outcome not in {Outcome.OK, Outcome.CANCELLED}


def prompt_length(request: RequestRecord) -> int | None:
    """Prompt tokens as counted by the engine, otherwise as planned; None if neither is known."""
    return request.prompt_tokens if request.prompt_tokens is not None else request.requested_input_tokens


def prompt_lengths(requests: Requests) -> Floats:
    """The same of each request; NaN if neither is known."""
    counted = requests.numbers("prompt_tokens")
    return np.where(np.isnan(counted), requests.numbers("requested_input_tokens"), counted)
