"""Waterfalls of single requests: the slowest of each trial as a chart, others as data for the page's script.

The page holds at most :data:`CHUNK_BUDGET` chunks and :data:`TEXT_BUDGET` characters of answers, shared evenly among
trials. It says what it omits; ``bakeoff.results.load(run).chunks`` has everything.
"""

import base64
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics.latency import e2e_s
from bakeoff.results.records import Phase, RequestRecord
from bakeoff.results.report.charts.waterfall import waterfall
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run

SLOWEST = 3
CHUNK_BUDGET = 48_000
TEXT_BUDGET = 100_000
STROKE_BUDGET = 12_000
"""Chunks, characters of answers, and strokes of the charts, over the whole page."""
MAX_TEXT, MAX_ERROR, MAX_FAILED = 600, 300, 20
"""Characters per answer and per error; failed requests per trial that are always included."""
_FEWEST_STROKES = 48
_UNIT_NS = 10_000
"""Unit of time in the data for the script: hundredths of a millisecond."""


class ScriptRequest(msgspec.Struct, frozen=True, array_like=True):
    """One request for the script; times count from its planned time, in hundredths of a millisecond.

    ``chunks`` holds the differences of arrival times, the first from the planned time, as base64 of LEB128 numbers.
    ``tokens`` is None if every chunk has one token. ``text`` is truncated; ``characters`` is its full length.
    """

    index: int
    state: str
    session: str
    turn: int
    prompt_tokens: int | None
    finish_reason: str | None
    sent: int | None
    first_byte: int | None
    ended: int
    chunks: str
    tokens: list[int] | None
    text: str
    characters: int
    error: str | None


class Waterfalls(msgspec.Struct, frozen=True):
    """One trial: its id, the slowest requests as a chart, the requests for the script, and a note on omissions."""

    trial: str
    slowest: Markup
    requests: list[ScriptRequest]
    note: str


def waterfalls(run: Run, colours: Sequence[str]) -> list[Waterfalls]:
    """Waterfalls of each finished trial, in planned order.

    Args:
        run: the run.
        colours: CSS class of the engine, per finished trial.
    """
    count = max(1, len(run.finished))
    included = [_included(trial, CHUNK_BUDGET // count) for trial in run.finished]
    max_characters = min(MAX_TEXT, TEXT_BUDGET // max(1, sum(len(requests) for requests in included)))
    strokes = max(_FEWEST_STROKES, STROKE_BUDGET // (count * SLOWEST))
    return [
        Waterfalls(
            trial.record.id,
            waterfall(_title(trial), slowest_of(trial), colour, strokes),
            [_script_request(request, max_characters) for request in requests],
            _note(len(requests), len(trial.requests)),
        )
        for trial, requests, colour in zip(run.finished, included, colours, strict=True)
    ]


def slowest_of(trial: Trial) -> list[RequestRecord]:
    """Requests of the window with the longest E2E latency, slowest first."""
    answered = trial.answered.take(trial.answered.chunks.counts > 0)
    slowest_first = np.argsort(-e2e_s(answered), kind="stable")
    return list(answered.take(slowest_first[:SLOWEST]))


def packed(times_ns: Sequence[int], start_ns: int) -> str:
    """Base64 of LEB128-encoded differences of times, the first from ``start_ns``.

    Times are rounded before they are differenced, so that rounding errors do not accumulate.
    """
    units = [0, *(round((t_ns - start_ns) / _UNIT_NS) for t_ns in times_ns)]
    data = bytearray()
    for before, now in pairwise(units):
        rest = max(0, now - before)
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return base64.b64encode(bytes(data)).decode()


def _included(trial: Trial, chunks: int) -> list[RequestRecord]:
    """Evenly spaced requests with about ``chunks`` chunks in all, plus the slowest and some failed ones."""
    requests = trial.requests
    share = min(1.0, chunks / max(1, len(requests.chunks.ns)))
    failed = requests.ints("index")[~requests.is_ok][:MAX_FAILED]
    always = np.concatenate([failed, [request.index for request in slowest_of(trial)]])
    planned = requests.take(np.argsort(requests.ints("planned_ns"), kind="stable"))
    numbers = np.arange(len(planned))
    is_spaced = ((numbers + 1) * share).astype(np.int64) > (numbers * share).astype(np.int64)
    return list(planned.take(is_spaced | np.isin(planned.ints("index"), always)))


def _script_request(request: RequestRecord, max_characters: int) -> ScriptRequest:
    phase = "" if request.phase is Phase.MEASURED else f"{request.phase.value}, "
    return ScriptRequest(
        index=request.index,
        state=phase + request.outcome.value.replace("_", " "),
        session=request.session[:60],
        turn=request.turn,
        prompt_tokens=request.prompt_tokens,
        finish_reason=request.finish_reason,
        sent=_since_planned(request, request.sent_ns),
        first_byte=_since_planned(request, request.first_byte_ns),
        ended=round((request.ended_ns - request.planned_ns) / _UNIT_NS),
        chunks=packed(request.chunk_ns, request.planned_ns),
        tokens=None if set(request.chunk_tokens) <= {1} else request.chunk_tokens,
        text=request.text[:max_characters],
        characters=len(request.text),
        error=None if request.error is None else request.error[:MAX_ERROR],
    )


def _since_planned(request: RequestRecord, t_ns: int | None) -> int | None:
    return None if t_ns is None else round((t_ns - request.planned_ns) / _UNIT_NS)


def _title(trial: Trial) -> str:
    record = trial.record
    return f"Slowest requests of {record.engine}, {record.workload}, {record.load.label}, repeat {record.repeat}"


def _note(included: int, planned: int) -> str:
    return (
        "" if included == planned else f"{included:,} of {planned:,} requests are on the page, the slowest among them."
    )
