"""Fold the engine's samples and the client's requests into the figures of a trial and of a cell."""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from bakeoff.results.metrics.declaration import known
from bakeoff.results.metrics.latency import pooled_tpot_s, ttft_from_send_s
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import TelemetryRecord, Window
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.server_view import histograms
from bakeoff.results.server_view.catalogue import (
    ENGINE_FIGURES,
    GAUGES,
    HISTOGRAMS,
    POSITIONED,
    QUANTILES,
    WITH_QUANTILES,
)
from bakeoff.results.server_view.readings import Readings, readings
from bakeoff.results.server_view.split import split
from bakeoff.results.statistics.interval import Interval, interval_of

_UNVERIFIED = "no draft was verified"


class ServerCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """The engine's figures of one cell.

    Attributes:
        intervals: name → 95 % interval over the valid trials; only the client's figures if the engine reports nothing.
        reasons: why other figures are missing; empty if the engine reports nothing.
        why: why the engine reports nothing; None if it reports something.
    """

    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    why: str | None = None


def server_view(telemetry: Sequence[TelemetryRecord], requests: Requests, window: Window) -> dict[str, Value]:
    """Compute the values of :data:`~bakeoff.results.server_view.catalogue.ENGINE_FIGURES` for a trial.

    Args:
        telemetry: samples of the trial.
        requests: decoded requests; those that the counters count are chosen by the marks.
        window: the steady window, for gauges; everything else covers all measured requests.

    Returns:
        one value per name of the catalogue.
    """
    samples = readings(telemetry)
    answered = samples.counted(requests).ok
    answered = answered.take(answered.chunks.counts > 0)
    values = {**_gauges(samples, window), **_counters(samples)}
    means = {f"server_{name}_mean_s": histograms.mean(samples, f"{name}_s", len(answered)) for name in HISTOGRAMS}
    client = _client(answered)
    return {**values, **means, **_quantiles(samples), **client, **split({**means, **client})}


def server_cell(trials: Sequence[Mapping[str, Value]]) -> ServerCell:
    """Combine the values of a cell's valid trials."""
    if not trials:
        return ServerCell(why="no valid trial")
    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    for name, figure in ENGINE_FIGURES.items():
        values = [trial[name] for trial in trials]
        interval = interval_of(figure.unit, [value.value for value in values if value.value is not None])
        if interval is not None:
            intervals[name] = interval
        else:
            reasons[name] = next((value.reason for value in values if value.reason), "")
    if any(name.startswith("server_") for name in intervals):
        return ServerCell(intervals, reasons)
    return ServerCell(intervals, why=reasons["server_e2e_mean_s"])


def _gauges(samples: Readings, window: Window) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, *_ in GAUGES:
        levels, why = samples.levels(name, window)
        values[f"server_{name}_mean"] = Value(statistics.fmean(levels)) if levels else absent(why)
        values[f"server_{name}_peak"] = Value(max(levels)) if levels else absent(why)
    return values


def _counters(samples: Readings) -> dict[str, Value]:
    increase = samples.increase
    return {
        "server_preemptions": increase("preemptions_total"),
        "server_prefix_hit_share": prefix_hit_share(samples),
        **_speculation(samples),
        "server_prompt_tokens": increase("prompt_tokens_total"),
        "server_output_tokens": increase("output_tokens_total"),
    }


def prefix_hit_share(samples: Readings) -> Value:
    """Share of the prompt tokens looked up in the prefix cache that were found."""
    return _share(
        samples.increase("prefix_hits_tokens_total"),
        samples.increase("prefix_queries_tokens_total"),
        "no prompt token was looked up",
    )


def _speculation(samples: Readings) -> dict[str, Value]:
    drafted, accepted, verifications = (
        samples.increase(name) for name in ("drafted_tokens_total", "accepted_tokens_total", "verifications_total")
    )
    extra = _share(accepted, verifications, _UNVERIFIED)
    return {
        "server_drafted_tokens": drafted,
        "server_accepted_tokens": accepted,
        "server_acceptance_share": _share(accepted, drafted, "no token was drafted"),
        "server_verifications": verifications,
        "server_tokens_per_verification": extra if extra.value is None else Value(1 + extra.value),
        **{
            name: _share(_accepted_at(samples, position), verifications, _UNVERIFIED)
            for position, name in enumerate(POSITIONED)
        },
    }


def _accepted_at(samples: Readings, position: int) -> Value:
    """Accepted drafts at a position; 0 where the page shows only positions that have had one, and not this one."""
    first, own = (samples.increase(f"accepted_at_{number}_total") for number in (0, position))
    is_reported = samples.after is not None and f"accepted_at_{position}_total" in samples.after.values
    return own if is_reported or first.value is None else Value(0.0)


def _share(part: Value, whole: Value, empty: str) -> Value:
    if part.value is None or whole.value is None:
        return part if part.value is None else whole
    return Value(part.value / whole.value) if whole.value else absent(empty)


def _quantiles(samples: Readings) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name in WITH_QUANTILES:
        for label, q in QUANTILES:
            estimate = histograms.quantile(samples, f"{name}_s", q)
            values[f"server_{name}_{label}_s"] = estimate.value
            values[f"server_{name}_{label}_width_s"] = estimate.width
    return values


def _client(answered: Requests) -> dict[str, Value]:
    """The client's means over the same requests, measured from send."""
    pace_s = pooled_tpot_s(answered)
    return {
        "client_ttft_mean_s": _mean(ttft_from_send_s(answered)),
        "client_itl_mean_s": Value(pace_s) if pace_s is not None else absent("no answer had a second chunk"),
        "client_e2e_mean_s": _mean(answered.seconds_from("sent_ns", answered.chunks.last_ns)),
    }


def _mean(values: Floats) -> Value:
    found = known(values)
    return Value(float(found.mean())) if len(found) else absent("no request ended ok")
