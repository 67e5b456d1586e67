"""Reports of GuideLLM, ``benchmarks.json``: one measurement per benchmark, as a sweep has several.

Source: ``guidellm.schemas`` of https://github.com/vllm-project/guidellm, 0.8, and the names of its first versions. A
request has the times of its first and last token and their number, but not those of the tokens between, so ITL is its
mean within each answer.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.errors import UNDECODABLE, NotImportable
from bakeoff.results.records import Load
from bakeoff.results.views.imported import Answer, Imported, checked_load, first_of, peak_in_flight, record_of

_GROUPS = ("successful", "errored", "incomplete")
_ARRIVALS = frozenset({"poisson", "constant"})


class _Benchmark(msgspec.Struct):
    requests: dict[str, list[dict[str, Any]] | None]
    config: dict[str, Any] = {}
    args: Any = None
    start_time: float | None = None


class _Report(msgspec.Struct):
    benchmarks: list[_Benchmark]


def read_guidellm(path: Path) -> list[Imported]:
    """The measurements of a report.

    Raises:
        NotImportable: it cannot be read, is of another format, or holds no single requests.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except OSError as error:
        raise NotImportable(f"{path} cannot be read: {error.strerror}") from error
    except UNDECODABLE as error:
        raise NotImportable(f"{path} is not a report of GuideLLM ({error}); give its benchmarks.json") from error
    try:
        several = len({_target(benchmark) for benchmark in report.benchmarks}) > 1
        results = [
            _imported(benchmark, str(path), (_target(benchmark) if several else None) or "guidellm")
            for benchmark in report.benchmarks
        ]
    except (AttributeError, TypeError, ValueError, OverflowError, OSError) as error:  # a field of another type
        raise NotImportable(f"{path} is damaged, or of another version of GuideLLM ({error})") from error
    if not results:
        raise NotImportable(f"{path} has no benchmark")
    return results


def _config(benchmark: _Benchmark) -> dict[str, Any]:
    return benchmark.config or (benchmark.args if isinstance(benchmark.args, dict) else {})


def _target(benchmark: _Benchmark) -> str | None:
    """The address of the server, which tells several servers of one report apart."""
    target = first_of(_config(benchmark).get("backend"), "target")
    return target if isinstance(target, str) else None


def _imported(benchmark: _Benchmark, place: str, engine: str) -> Imported:
    answers = sorted(_answers(benchmark), key=lambda answer: answer.start_s)
    if not answers:
        raise NotImportable(f"{place} holds only summaries, without single requests; let GuideLLM keep them")
    started = benchmark.start_time
    config = _config(benchmark)
    return Imported(
        engine=engine,
        model=str(first_of(config, "model") or "unknown"),
        backend=str(first_of(config.get("backend"), "kind", "type_") or "openai_http"),
        load=checked_load(_load(config, answers), place),
        requests=[record_of(answer, index, place) for index, answer in enumerate(answers)],
        measured_utc=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds") if started else None,
    )


def _answers(benchmark: _Benchmark) -> Iterator[Answer]:
    for group in _GROUPS:
        for number, stats in enumerate(benchmark.requests.get(group) or ()):
            if (answer := _answer(stats, group, number)) is not None:
                yield answer


def _answer(stats: Mapping[str, Any], group: str, number: int) -> Answer | None:
    """A request; None if it was never sent."""
    info = stats.get("info") or {}
    times = info.get("timings") or {}
    start_s, end_s = _time(times, stats, "request_start", "start"), _time(times, stats, "request_end", "end")
    if start_s is None:
        return None
    tokens = _tokens(stats, "output")
    first_s = _time(times, stats, "first_token_iteration", "first_token")
    last_s = _time(times, stats, "last_token_iteration", "last_token")
    ends = [time for time in (first_s, last_s if tokens > 1 else None) if time is not None]
    return Answer(
        session=str(info.get("conversation_id") or stats.get("request_id") or f"{group}-{number}"),
        turn=int(info.get("turn_index") or 0),
        start_s=start_s,
        end_s=end_s or max([start_s, *ends]),
        planned_s=_time(times, stats, "targeted_start"),
        arrivals_s=ends,
        tokens=tokens,
        prompt_tokens=_tokens(stats, "input") or None,
        text=str(stats.get("output") or ""),
        error=str(info.get("error") or "the tool counts it as failed") if group == "errored" else None,
        was_cancelled=group == "incomplete",
    )


def _time(times: Mapping[str, Any], stats: Mapping[str, Any], name: str, old_name: str = "") -> float | None:
    """A time of a request, which the first versions of the tool named otherwise."""
    value = times.get(name, stats.get(f"{name}_time", stats.get(f"{old_name}_time")))
    return float(value) if isinstance(value, int | float) else None


def _tokens(stats: Mapping[str, Any], side: str) -> int:
    metrics = stats.get(f"{side}_metrics") or {}
    other = stats.get("prompt_tokens" if side == "input" else "output_tokens")
    value = metrics.get("total_tokens") or metrics.get("text_tokens") or other
    return round(value) if isinstance(value, int | float) else 0


def _load(config: Mapping[str, Any], answers: list[Answer]) -> Load:
    strategy = config.get("strategy")
    kind = str(first_of(strategy, "type_", "kind") or "")
    rate, streams = first_of(strategy, "rate"), first_of(strategy, "streams", "max_concurrency")
    if kind in _ARRIVALS and isinstance(rate, int | float):
        return Load(rate_per_s=float(rate), arrival=kind)
    if kind == "synchronous":
        return Load(concurrency=1)
    return Load(concurrency=streams if isinstance(streams, int) and streams > 0 else peak_in_flight(answers))
