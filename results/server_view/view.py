"""The engine's view beside the client's, of a trial and of a cell: pure functions over the samples and the requests."""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from results.metrics.latency import ttft_from_send_s
from results.metrics.trial import under_load
from results.metrics.values import Value, absent
from results.records import Outcome, RequestRecord, TelemetryRecord, Window
from results.server_view import histograms
from results.server_view.catalogue import GAUGES, HISTOGRAMS, QUANTILES, SEEN, WITH_QUANTILES
from results.server_view.readings import Readings, readings
from results.server_view.split import split
from results.statistics.interval import Interval, interval_of
from results.units import NS_PER_S


class ServerCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine told.

    Attributes:
        intervals: name → 95 % interval over the valid trials; where it told nothing, of the client's side alone.
        reasons: why the others have no entry; empty where the engine told nothing.
        why: why it told nothing; None where it told something.
    """

    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    why: str | None = None


def server_view(
    telemetry: Sequence[TelemetryRecord], requests: Sequence[RequestRecord], window: Window
) -> dict[str, Value]:
    """Fold the readings of a trial into the values of :data:`~results.server_view.catalogue.SEEN`.

    Args:
        telemetry: the trial's samples.
        requests: its decoded requests; warm-up ones are left out, as the marks leave them out.
        window: the steady window, for gauges; all else is taken over all measured requests.

    Returns:
        one value for each name of the catalogue.
    """
    found = readings(telemetry)
    done = [request for request in under_load(requests) if request.outcome is Outcome.OK and request.chunk_ns]
    values = {**_gauges(found, window), **_counted(found)}
    means = {f"server_{name}_mean_s": histograms.mean(found, f"{name}_s", len(done)) for name in HISTOGRAMS}
    client = _client(done)
    return {**values, **means, **_quantiles(found), **client, **split({**means, **client})}


def server_cell(trials: Sequence[Mapping[str, Value]]) -> ServerCell:
    """Fold the values of a cell's valid trials."""
    if not trials:
        return ServerCell(why="no valid trial")
    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    for name, seen in SEEN.items():
        values = [trial[name] for trial in trials]
        interval = interval_of(seen.unit, [value.value for value in values if value.value is not None])
        if interval is not None:
            intervals[name] = interval
        else:
            reasons[name] = next((value.reason for value in values if value.reason), "")
    if any(name.startswith("server_") for name in intervals):
        return ServerCell(intervals, reasons)
    return ServerCell(intervals, why=reasons["server_e2e_mean_s"])


def _gauges(found: Readings, window: Window) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, *_ in GAUGES:
        levels, why = found.levels(name, window)
        values[f"server_{name}_mean"] = Value(statistics.fmean(levels)) if levels else absent(why)
        values[f"server_{name}_peak"] = Value(max(levels)) if levels else absent(why)
    return values


def _counted(found: Readings) -> dict[str, Value]:
    moved = found.moved
    return {
        "server_preemptions": moved("preemptions_total"),
        "server_prefix_hit_share": _share(
            moved("prefix_hits_tokens_total"), moved("prefix_queries_tokens_total"), "nothing was looked for"
        ),
        "server_acceptance_share": _share(
            moved("accepted_tokens_total"), moved("drafted_tokens_total"), "nothing was drafted"
        ),
        "server_prompt_tokens": moved("prompt_tokens_total"),
        "server_output_tokens": moved("output_tokens_total"),
    }


def _share(part: Value, whole: Value, empty: str) -> Value:
    if part.value is None or whole.value is None:
        return part if part.value is None else whole
    return Value(part.value / whole.value) if whole.value else absent(empty)


def _quantiles(found: Readings) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name in WITH_QUANTILES:
        for label, q in QUANTILES:
            drawn = histograms.quantile(found, f"{name}_s", q)
            values[f"server_{name}_{label}_s"] = drawn.value
            values[f"server_{name}_{label}_width_s"] = drawn.width
    return values


def _client(done: Sequence[RequestRecord]) -> dict[str, Value]:
    """What the client saw of the same requests, from the instant at which it sent them."""
    ttfts = [ttft for request in done if (ttft := ttft_from_send_s(request)) is not None]
    e2es = [(request.chunk_ns[-1] - request.sent_ns) / NS_PER_S for request in done if request.sent_ns is not None]
    later = sum(request.total_chunk_tokens - request.chunk_tokens[0] for request in done)
    spans = sum(request.chunk_ns[-1] - request.chunk_ns[0] for request in done) / NS_PER_S
    return {
        "client_ttft_mean_s": Value(statistics.fmean(ttfts)) if ttfts else absent("no request ended ok"),
        "client_itl_mean_s": Value(spans / later) if later else absent("no answer had a second chunk"),
        "client_e2e_mean_s": Value(statistics.fmean(e2es)) if e2es else absent("no request ended ok"),
    }
