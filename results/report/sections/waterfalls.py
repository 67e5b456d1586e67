"""Single requests chunk by chunk: the slowest of each trial as a drawing, the others as data for the page's script.

Data of at most :data:`CHUNK_BUDGET` chunks and :data:`TEXT_BUDGET` characters of answers are on the page, shared evenly
among its trials; what is left out is said, and ``results.load(run).chunks`` has everything.
"""

import base64
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from results.records import Outcome, Phase, RequestRecord
from results.report.charts.waterfall import waterfall
from results.run import Run, Trial

SLOWEST = 3
CHUNK_BUDGET = 48_000
TEXT_BUDGET = 100_000
STROKE_BUDGET = 12_000
"""Chunks, characters of answers, and strokes of the drawings, over the whole page."""
MAX_TEXT, MAX_ERROR, MAX_FAILED = 600, 300, 20
"""Characters of one answer and of one error; failed requests of a trial that are never left out."""
_FEWEST_STROKES = 48
_UNIT_NS = 10_000
"""Times are sent to the script in hundredths of a millisecond."""


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """One request for the script; times count from its plan, in hundredths of a millisecond.

    ``chunks`` are the distances from each arrival to the next, the first from the plan, as base64 of LEB128 numbers;
    ``tokens`` is None where every chunk carried one. ``text`` is cut; ``letters`` is how long it was.
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
    letters: int
    error: str | None


class Waterfalls(msgspec.Struct, frozen=True):
    """One trial: its id, the slowest requests as a drawing, what the script may draw, and what is left out."""

    trial: str
    slowest: Markup
    shown: list[Shown]
    note: str


def waterfalls(run: Run, colours: Sequence[str]) -> list[Waterfalls]:
    """One per finished trial, in the order of the plan.

    Args:
        run: as loaded.
        colours: the engine's class of each finished trial.
    """
    count = max(1, len(run.finished))
    kept = [_kept(trial, CHUNK_BUDGET // count) for trial in run.finished]
    letters = min(MAX_TEXT, TEXT_BUDGET // max(1, sum(len(requests) for requests in kept)))
    strokes = max(_FEWEST_STROKES, STROKE_BUDGET // (count * SLOWEST))
    return [
        Waterfalls(
            trial.record.id,
            waterfall(_title(trial), slowest_of(trial), colour, strokes),
            [_shown(request, letters) for request in requests],
            _note(len(requests), len(trial.requests)),
        )
        for trial, requests, colour in zip(run.finished, kept, colours, strict=True)
    ]


def slowest_of(trial: Trial) -> list[RequestRecord]:
    """The requests of the window that took longest to their last token, the slowest first."""
    return sorted(trial.answered, key=lambda request: request.planned_ns - request.chunk_ns[-1])[:SLOWEST]


def packed(times_ns: Sequence[int], start_ns: int) -> str:
    """Base64 of the LEB128 distances from ``start_ns`` to the first time and from each to the next.

    Every time is rounded before the difference is taken, so that no error adds up.
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


def _kept(trial: Trial, chunks: int) -> list[RequestRecord]:
    """Requests at even distances, with about ``chunks`` chunks; the slowest and some failed ones in any case."""
    share = min(1.0, chunks / max(1, sum(len(request.chunk_ns) for request in trial.requests)))
    failed = [request.index for request in trial.requests if request.outcome is not Outcome.OK][:MAX_FAILED]
    always = {request.index for request in slowest_of(trial)} | set(failed)
    planned = sorted(trial.requests, key=lambda request: request.planned_ns)
    return [
        request for i, request in enumerate(planned) if int((i + 1) * share) > int(i * share) or request.index in always
    ]


def _shown(request: RequestRecord, letters: int) -> Shown:
    part = "" if request.phase is Phase.MEASURED else f"{request.phase.value}, "
    return Shown(
        index=request.index,
        state=part + request.outcome.value.replace("_", " "),
        session=request.session[:60],
        turn=request.turn,
        prompt_tokens=request.prompt_tokens,
        finish_reason=request.finish_reason,
        sent=_after(request, request.sent_ns),
        first_byte=_after(request, request.first_byte_ns),
        ended=round((request.ended_ns - request.planned_ns) / _UNIT_NS),
        chunks=packed(request.chunk_ns, request.planned_ns),
        tokens=None if set(request.chunk_tokens) <= {1} else request.chunk_tokens,
        text=request.text[:letters],
        letters=len(request.text),
        error=None if request.error is None else request.error[:MAX_ERROR],
    )


def _after(request: RequestRecord, t_ns: int | None) -> int | None:
    return None if t_ns is None else round((t_ns - request.planned_ns) / _UNIT_NS)


def _title(trial: Trial) -> str:
    record = trial.record
    return f"Slowest requests of {record.engine}, {record.workload}, {record.load.label}, repeat {record.repeat}"


def _note(kept: int, planned: int) -> str:
    return f"{kept:,} of {planned:,} requests are on the page, the slowest among them." if kept < planned else ""
