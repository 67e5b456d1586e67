"""Texts and tables of a plan, for the terminal and the page."""

from collections.abc import Sequence

from bakeoff.harness.sizing.calibration import Calibration
from bakeoff.harness.sizing.device import BatchRow, DevicePlan
from bakeoff.harness.sizing.plan import Plan, Sizing
from bakeoff.harness.sizing.prefix_cache import CacheSize, DeviceCache, PrefixCachePlan
from bakeoff.harness.sizing.sizing import Candidate
from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.show.table import Table, text_table
from bakeoff.results.text.format import ABSENT, money, percent_text, short_text, value_text

_GIB = 2**30


def model_lines(plan: Plan) -> list[str]:
    """The model and its traffic."""
    model, traffic = plan.model, plan.traffic
    active = (
        "" if model.active_parameters >= model.parameters / 2 else f", {model.active_parameters / 1e9:.2f} G active"
    )
    up_to = "up to " if plan.prefix_cache is not None and plan.prefix_cache.is_planned else ""
    cached = f", {up_to}{traffic.cached_tokens:,} of them cached" if traffic.cached_tokens else ""
    size = f"{value_text(Unit.BYTES, model.weight_bytes)} in {model.precision} ({model.layout})"
    return [
        f"{model.name}: {model.parameters / 1e9:.2f} G parameters{active}; {size}",
        f"KV cache in {model.cache}: {model.kv_bytes_per_token / 1024:,.1f} KiB a token: {model.kv_parts}",
        f"requests: {traffic.input_tokens:,} prompt tokens{cached}, {traffic.output_tokens:,} output tokens",
    ]


def answer(plan: Plan) -> str:
    """The plan in one sentence."""
    if plan.sizing is not None:
        return _sizing_answer(plan.sizing)
    served = [device for device in plan.devices if device.batches]
    if not served:
        return "None of these GPUs holds the model and one request."
    best = max(served, key=_most_per_gpu)
    return (
        f"{device_title(best)} serves up to {_most_per_gpu(best) * best.ranks:,.0f} output tokens/s; one user alone "
        f"waits {seconds(best.batches[0].itl_p50_s)} for each token."
    )


def _sizing_answer(sizing: Sizing) -> str:
    slo, best = " and ".join(sizing.slo), sizing.candidates[0]
    if best.failure is not None:
        return f"None of these GPUs keeps {slo} at {sizing.rate_per_s:g} requests/s."
    price = "" if best.price_per_hour is None else f", at {money(best.price_per_hour)} an hour"
    split = f", {best.replicas} replicas of {best.ranks} GPUs" if best.ranks > 1 and best.replicas > 1 else ""
    return f"{best.count} × {best.gpu}{split} keeps {slo} at {sizing.rate_per_s:g} requests/s{price}."


def _most_per_gpu(device: DevicePlan) -> float:
    return max(row.output_tokens_per_s for row in device.batches) / device.ranks


def device_title(device: DevicePlan) -> str:
    """``NVIDIA H200 SXM × 2``."""
    return device.gpu.title + (f" × {device.ranks}" if device.ranks > 1 else "")


def fit_text(device: DevicePlan) -> str:
    """Numbers of sequences that fit, by context."""
    return ", ".join(f"{count:,} × {context:,} tokens" for context, count in device.fitting.items())


def critical_text(device: DevicePlan) -> str:
    """The batch from which decode is compute-bound."""
    empty, at_context = (
        "no batch" if batch is None else f"batch {batch:,}"
        for batch in (device.critical_batch, device.critical_batch_at_context)
    )
    return f"{empty} with an empty context, {at_context} with these requests"


def batch_table(device: DevicePlan) -> Table:
    """A row for each number of requests in flight."""
    headings = ["in flight", "ITL floor", "bound", "ITL p50", "TTFT p50", "tok/s", "req/s", "J/token"]
    prices = ["1M in", "1M out"] if _is_priced(device) else []
    return text_table("By requests in flight", headings + prices, (_batch(device, row) for row in device.batches))


def _batch(device: DevicePlan, row: BatchRow) -> list[str]:
    energy = row.energy_per_output_token_j
    cells = [
        f"{row.batch:,}",
        seconds(row.itl_floor_s),
        "memory" if row.is_memory_bound else "compute",
        seconds(row.itl_p50_s),
        seconds(row.ttft_p50_s),
        f"{row.output_tokens_per_s:,.0f}",
        f"{row.requests_per_s:.3g}",
        ABSENT if energy is None else f"≤ {energy:.3g}",
    ]
    costs = [money(row.list_price_per_million_input), money(row.cost_per_million_output)]
    return cells + (costs if _is_priced(device) else [])


def _is_priced(device: DevicePlan) -> bool:
    return bool(device.batches) and device.batches[0].cost_per_million_output is not None


def prefix_cache_title(cache: PrefixCachePlan) -> str:
    """The load of a plan of the prefix cache."""
    options = f" ({', '.join(cache.options)})" if cache.options else ""
    return f"{cache.workload}{options}, {cache.sessions:,} session{'' if cache.sessions == 1 else 's'} in progress"


def prefix_cache_lines(plan: Plan, cache: PrefixCachePlan) -> list[str]:
    """What an unlimited prefix cache finds, what the devices find, and how much is enough."""
    per_token, longest = plan.model.kv_bytes_per_token, plan.model.max_length
    possible = value_text(Unit.SHARE, cache.unlimited_share)
    held = (
        f"{_room_text(cache.held_mean_tokens, per_token)} in the mean, {_room_text(cache.held_max_tokens, per_token)}"
    )
    lines = [
        f"an unlimited prefix cache finds {possible} of the prompt tokens",
        *(_device_cache_text(cache, device) for device in cache.devices if cache.unlimited_share),
        *(f"{percent} % of the possible {possible} need {_size_text(size)}" for percent, size in cache.enough.items()),
        f"calls in progress hold {held} at most",
    ]
    if cache.longest_prompt_tokens > longest:
        lines.append(f"the longest prompt has {cache.longest_prompt_tokens:,} tokens, the model takes {longest:,}")
    return lines


def _device_cache_text(cache: PrefixCachePlan, device: DeviceCache) -> str:
    name = f"{device.ranks} × {device.gpu}"
    if device.room is None:
        return f"{name} does not hold the model"
    waits = "; the calls in progress need more, so some wait" if device.room.tokens < cache.held_mean_tokens else ""
    found = value_text(Unit.SHARE, device.room.hit_share)
    return f"{name} finds {found} in {_size_text(device.room)} beside the weights{waits}"


def _size_text(size: CacheSize) -> str:
    return f"{value_text(Unit.BYTES, size.bytes)} ({short_text(size.tokens)} tokens)"


def _room_text(tokens: float, bytes_per_token: float) -> str:
    return f"{value_text(Unit.BYTES, tokens * bytes_per_token)} ({short_text(tokens)} tokens)"


def prefix_cache_table(cache: PrefixCachePlan) -> Table:
    """What caches of several sizes find."""
    rows = (
        [
            value_text(Unit.BYTES, size.bytes),
            short_text(size.tokens),
            value_text(Unit.SHARE, size.hit_share),
            percent_text(size.hit_share / cache.unlimited_share),
        ]
        for size in cache.sizes
    )
    return text_table("Prefix caches by size", ["cache", "tokens", "finds", "of the possible"], rows)


def sizing_table(sizing: Sizing) -> Table:
    """Candidates that keep the SLO."""
    metrics = [metric_title(name) for name in sizing.candidates[0].values]
    last = "price/h" if _has_price(sizing) else "max W"
    headings = ["GPU", "tensor × replicas", "GPUs", "max req/s each", *metrics, "running", last]
    kept = (candidate for candidate in sizing.candidates if candidate.failure is None)
    return text_table("GPUs that keep the SLO", headings, (_candidate(sizing, candidate) for candidate in kept))


def _candidate(sizing: Sizing, candidate: Candidate) -> list[str]:
    watts = ABSENT if candidate.tdp_w is None else f"{candidate.tdp_w:,.0f}"
    return [
        candidate.gpu,
        f"{candidate.ranks} × {candidate.replicas}",
        str(candidate.count),
        f"{candidate.capacity_per_s:.3g}",
        *map(seconds, candidate.values.values()),
        f"{candidate.running:.3g}",
        money(candidate.price_per_hour) if _has_price(sizing) else watts,
    ]


def _has_price(sizing: Sizing) -> bool:
    return any(candidate.price_per_hour is not None for candidate in sizing.candidates)


def unpriced_text(sizing: Sizing) -> str:
    """GPUs that come last for lack of a price; empty if there are none."""
    kept = [candidate for candidate in sizing.candidates if candidate.failure is None]
    unpriced = dict.fromkeys(candidate.gpu for candidate in kept if candidate.price_per_hour is None)
    return f"last, without a --price: {', '.join(unpriced)}" if unpriced and _has_price(sizing) else ""


def failures(candidates: Sequence[Candidate]) -> list[str]:
    """Why candidates fail, one line each."""
    failed = [candidate for candidate in candidates if candidate.failure is not None]
    return [f"{candidate.gpu} × {candidate.ranks} {candidate.failure}: {candidate.detail}" for candidate in failed]


def calibration_facts(calibration: Calibration) -> list[tuple[str, str]]:
    """The fit."""
    fit = calibration.efficiency
    return [
        ("of the bandwidth", percent_text(fit.bytes_share)),
        ("of the products", percent_text(fit.flops_share)),
        ("a step", seconds(fit.step_s)),
        ("a sequence in it", seconds(fit.sequence_s)),
        ("a request", seconds(fit.request_s)),
        ("a token in the front end", seconds(fit.token_s)),
        ("more on an idle engine", seconds(fit.idle_s)),
    ]


def calibration_note(calibration: Calibration) -> str:
    """Where predictions come from."""
    if calibration.is_prediction:
        return "each load is predicted by a fit to the others"
    return "fewer than three loads: figures are fitted, not predicted"


def calibration_table(calibration: Calibration) -> Table:
    """Predictions beside measurements."""
    rows = (
        [
            prediction.load,
            metric_title(prediction.metric),
            value_text(_unit(prediction.metric), prediction.measured),
            ABSENT if prediction.spread is None else f"± {50 * prediction.spread:.1f} %",
            value_text(_unit(prediction.metric), prediction.predicted),
            f"{100 * prediction.error:+.1f} %".replace("-", "−"),
        ]
        for prediction in calibration.predictions
    )
    headings = ["load", "metric", "measured", "repeats", "predicted", "error"]
    return text_table("Predicted against measured", headings, rows, named=2)


def metric_title(name: str) -> str:
    """Title of a metric."""
    return CATALOGUE[name].title if name in CATALOGUE else name


def _unit(name: str) -> Unit:
    return CATALOGUE[name].unit if name in CATALOGUE else Unit.BYTES


def gib_number(value: float) -> str:
    """Memory in GiB, without the unit."""
    return f"{value / _GIB:,.1f}"


def gib(value: float) -> str:
    """Memory in GiB."""
    return f"{gib_number(value)} GiB"


def seconds(value: float | None) -> str:
    """A duration, or absent."""
    return value_text(Unit.SECONDS, value)
