"""Longest time in which an engine advanced no answer, though requests were in flight.

A silence lasts from one chunk of any answer to the next one, or from the send of the oldest request then in flight if
that is later. It counts while an answer is under way, or two requests or more are in flight: a single request may wait
for its own long prompt. An engine has silences by design, such as the computation of a prompt, so the longest one is
compared with a usual one: of silences as long as this, there is one for every ten requests. Where few requests are in
flight, all may be silent by chance; so it is compared with the waits of single answers, too.
"""

import msgspec
import numpy as np

from bakeoff.results.columns import UNKNOWN
from bakeoff.results.metrics.latency import gaps_of, ttft_from_send_s
from bakeoff.results.records import Window
from bakeoff.results.requests import Requests
from bakeoff.results.units import NS_PER_S

_MIN_SHARE, _MIN_RATIO = 0.03, 8.0
"""A silence is reported from this share of the window and this multiple of the usual silence up. Answers that one slot
returns whole, of lognormal times with sigma 1.5, reach a multiple of 7 in 200 requests."""
_REQUESTS_PER_USUAL = 10
_OWN_RATIO, _OWN_QUANTILE = 3.0, 0.9
"""The least multiple of this quantile of what single answers wait for: their chunks, or the first one."""


class Silence(msgspec.Struct, frozen=True):
    """A silence of an engine.

    Attributes:
        length_s: its length within the window.
        usual_s: length of a usual silence of the same trial.
        in_flight: requests in flight from its beginning to its end.
    """

    length_s: float
    usual_s: float
    in_flight: int


def unusual_silence(requests: Requests, window: Window) -> Silence | None:
    """The longest silence within the window, if it is much longer than the usual ones and a fair part of the window.

    Args:
        requests: all under load.
        window: of the trial.
    """
    sent = requests.take(requests.ints("sent_ns") != UNKNOWN)
    answered = sent.take(sent.chunks.counts > 0)
    if not len(answered) or window.length_s <= 0:
        return None
    times_ns = answered.chunks.ns
    first_after = times_ns[times_ns > window.end_ns].min(initial=np.iinfo(np.int64).max)
    chunks = np.unique(times_ns[(times_ns >= window.start_ns) & (times_ns <= first_after)])
    began, ended = sent.ints("sent_ns"), sent.ints("ended_ns")
    order = np.argsort(ended)
    # the first send among the requests that end with this one or later
    oldest = np.minimum.accumulate(began[order][::-1])[::-1]
    before = np.concatenate([[window.start_ns], chunks[:-1]])
    starts = np.maximum(before, oldest[np.minimum(np.searchsorted(ended[order], chunks), len(sent) - 1)])
    lengths = np.minimum(chunks, window.end_ns) - starts
    first, last = np.sort(answered.chunks.first_ns), np.sort(answered.chunks.last_ns)
    under_way = np.searchsorted(first, starts, "right") - np.searchsorted(last, chunks, "left")
    in_flight = np.searchsorted(np.sort(began), starts, "right") - np.searchsorted(ended[order], chunks, "left")
    counts = ((under_way >= 1) | (in_flight >= 2)) & (lengths > 0)
    if not counts.any():
        return None
    numbers = np.flatnonzero(counts)
    numbers = numbers[np.argsort(lengths[numbers], kind="stable")[::-1]]
    usual = 1 + len(requests.planned_inside(window)) // _REQUESTS_PER_USUAL
    usual_ns = int(lengths[numbers[usual]]) if usual < len(numbers) else 0
    longest = numbers[0]
    found = Silence(int(lengths[longest]) / NS_PER_S, usual_ns / NS_PER_S, int(in_flight[longest]))
    least_s = max(_MIN_SHARE * window.length_s, _MIN_RATIO * found.usual_s)
    own_s = _own_s(answered, is_under_way=bool(under_way[longest] >= 1))
    is_unusual = found.length_s >= max(least_s, _OWN_RATIO * own_s)
    return found if is_unusual and usual_ns else None


def _own_s(answered: Requests, *, is_under_way: bool) -> float:
    """What a single answer waits for its next chunk, or for the first one, in one of ten waits."""
    gaps_s = gaps_of(answered).seconds
    gaps_s = gaps_s[gaps_s > 0]
    waits_s = gaps_s if is_under_way and len(gaps_s) else ttft_from_send_s(answered)
    return float(np.quantile(waits_s, _OWN_QUANTILE))
