"""Result files of AIPerf: ``profile_export.jsonl``, one request per line, and the summary beside it.

The lines hold each request's times and, with ``--export-level records`` or higher, the gaps between its chunks. Model
and load stand in ``profile_export_aiperf.json``; without that file, the load is taken from the requests in flight.
Source: ``aiperf.common.models`` of https://github.com/ai-dynamo/aiperf, 0.13.
"""

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.errors import UNDECODABLE, NotImportable
from bakeoff.results.records import Load
from bakeoff.results.units import NS_PER_S
from bakeoff.results.views.imported import Answer, Imported, checked_load, first_of, peak_in_flight, record_of

SUMMARY = "profile_export_aiperf.json"
_PROFILING = "profiling"
_RATES = {"poisson", "constant", "gamma"}


class _Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int
    session_num: int = 0
    conversation_id: str | None = None
    turn_index: int | None = None
    credit_issued_ns: int | None = None
    benchmark_phase: str = _PROFILING
    was_cancelled: bool = False


class _Metric(msgspec.Struct):
    value: Any = None
    unit: str | None = None


_MS = {
    "ns": 1e-6, "nanoseconds": 1e-6, "us": 1e-3, "µs": 1e-3, "microseconds": 1e-3, "s": 1e3, "sec": 1e3, "seconds": 1e3,
}  # fmt: skip
"""Milliseconds in the units of time that are none."""


class _Error(msgspec.Struct):
    code: Any = None
    type: str | None = None
    message: str | None = None


class _Line(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Metric] = {}
    error: _Error | None = None


def read_aiperf(path: Path) -> list[Imported]:
    """The measurement of a file, or of the folder that holds it.

    Raises:
        NotImportable: it cannot be read, is of another format, or has no request of the profiled phase.
    """
    file = path / "profile_export.jsonl" if path.is_dir() else path
    try:
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise NotImportable(f"{file} cannot be read: {error.strerror}") from error
    answers: list[Answer] = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded = msgspec.json.decode(line, type=_Line)
        except UNDECODABLE as error:
            raise NotImportable(
                f"{file}, line {number}: not a request of AIPerf ({error}); give its profile_export.jsonl"
            ) from error
        if decoded.metadata.benchmark_phase == _PROFILING:
            answers.append(_answer(decoded))
    if not any(answer.arrivals_s for answer in answers):  # otherwise an answer without a time had no token
        answers = [msgspec.structs.replace(answer, is_whole=True) for answer in answers]
    if not answers:
        raise NotImportable(f"{file} has no request of the phase '{_PROFILING}'")
    summary = _summary(file.parent / SUMMARY)
    model = str(first_of(summary, "model_names", "models", "model") or "unknown")
    requests = [record_of(answer, index, str(file)) for index, answer in enumerate(answers)]
    started = summary.get("start_time")
    return [
        Imported(
            engine="aiperf",
            model=model.strip("[]'\""),
            backend=str(first_of(summary, "endpoint_type", "type") or "openai"),
            load=checked_load(_load(summary, answers), str(file)),
            requests=requests,
            measured_utc=_utc(started),
        )
    ]


def _utc(started: Any) -> str | None:  # noqa: ANN401  (any JSON value)
    """A date in UTC, which a date without a zone is taken for; None if it is none."""
    try:
        moment = datetime.fromisoformat(str(started))
        utc = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return utc.isoformat(timespec="seconds")


def _answer(line: _Line) -> Answer:
    about = line.metadata
    start_s, end_s = about.request_start_ns / NS_PER_S, about.request_end_ns / NS_PER_S
    tokens = _count(line, "output_sequence_length") or _count(line, "output_token_count") or 0
    first_ms, gaps_ms = _numbers(line, "time_to_first_token"), _numbers(line, "inter_chunk_latency")
    last_ms = _numbers(line, "request_latency")
    arrivals_s: list[float] = []
    if first_ms:
        arrivals_s = [start_s + after_ms / 1e3 for after_ms in itertools.accumulate([first_ms[0], *gaps_ms])]
        if not gaps_ms and last_ms and tokens > 1:
            arrivals_s.append(start_s + last_ms[0] / 1e3)
    error = line.error
    code = error.code if error and isinstance(error.code, int) and 300 <= error.code < 600 else None
    return Answer(
        session=about.conversation_id or f"session-{about.session_num}",
        turn=about.turn_index or 0,
        start_s=start_s,
        end_s=end_s,
        planned_s=about.credit_issued_ns / NS_PER_S if about.credit_issued_ns else None,
        arrivals_s=arrivals_s,
        tokens=tokens,
        prompt_tokens=_count(line, "input_sequence_length"),
        error=None if error is None else f"{error.type or 'error'}: {error.message or ''}".strip(),
        status=code,
        was_cancelled=about.was_cancelled,
    )


def _numbers(line: _Line, name: str) -> list[float]:
    metric = line.metrics.get(name)
    values = metric.value if metric and isinstance(metric.value, list) else [metric.value] if metric else []
    factor = _MS.get(metric.unit or "", 1.0) if metric else 1.0
    return [factor * value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def _count(line: _Line, name: str) -> int | None:
    values = _numbers(line, name)
    return round(values[0]) if values else None


def _summary(file: Path) -> dict[str, Any]:
    try:
        summary = msgspec.json.decode(file.read_bytes())
    except (OSError, *UNDECODABLE):
        return {}
    return summary if isinstance(summary, dict) else {}


def _load(summary: Mapping[str, Any], answers: list[Answer]) -> Load:
    config = summary.get("input_config")
    phases = first_of(config, "phases")
    for phase in phases if isinstance(phases, list) else []:
        if isinstance(phase, dict) and phase.get("name", _PROFILING) == _PROFILING:
            config = phase
    rate, limit = first_of(config, "rate", "request_rate"), first_of(config, "concurrency")
    kind = str(first_of(config, "type", "arrival_pattern") or "")
    if isinstance(rate, int | float) and rate > 0:
        cap = limit if isinstance(limit, int) else None
        return Load(rate_per_s=float(rate), arrival=kind if kind in _RATES else "poisson", max_in_flight=cap)
    return Load(concurrency=limit if isinstance(limit, int) and limit > 0 else peak_in_flight(answers))
