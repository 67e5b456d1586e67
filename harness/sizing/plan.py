"""The plan of one model: memory, floors and cost on each GPU, and the GPUs that keep an SLO."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.calibration import Calibration, Fitter, calibrate
from bakeoff.harness.sizing.device import DevicePlan, Price, contexts_of, device_plan, fewest_ranks
from bakeoff.harness.sizing.gpus import Gpu, chosen, gpu_table
from bakeoff.harness.sizing.measured import measured_engines
from bakeoff.harness.sizing.memory import RUNTIME_BYTES, USABLE_SHARE
from bakeoff.harness.sizing.model import load_model
from bakeoff.harness.sizing.precision import cache_named, precision_named
from bakeoff.harness.sizing.prefix_cache import PrefixCachePlan, SessionLoad, SimulatedLoad, simulate_load
from bakeoff.harness.sizing.sizing import (
    RANKS,
    Candidate,
    Setting,
    Traffic,
    candidate,
    cheapest_first,
    check_predictable,
)
from bakeoff.harness.sizing.step_times import ALL_REDUCE_S, PEER_S, Efficiency
from bakeoff.results.metrics.objectives import Objective, objectives

_SEQUENCES_DRAWN = (1, 8, 64)
_INPUT_TOKENS, _OUTPUT_TOKENS = 1024, 256
TYPICAL = Efficiency(0.77, 0.95, 0.58e-3, 18e-6, 11e-3, 67e-6, 4e-3, "vLLM 0.24 on an H200 (docs/results/h200-bakeoff)")


class ModelFacts(msgspec.Struct, frozen=True):
    """The model in the chosen precisions.

    Attributes:
        name: of the shape, or path of its config.json.
        parameters: all weights.
        active_parameters: those that a token is multiplied by.
        weight_bytes: of all weights.
        kv_bytes_per_token: of a token in reach of every layer.
        kv_parts: its parts, as text.
        max_length: longest context in tokens.
        precision: of the weights.
        layout: codes and scales in words.
        cache: precision of the KV cache.
    """

    name: str
    parameters: int
    active_parameters: int
    weight_bytes: float
    kv_bytes_per_token: float
    kv_parts: str
    max_length: int
    precision: str
    layout: str
    cache: str


class Sizing(msgspec.Struct, frozen=True):
    """Candidates for an SLO at a rate.

    Attributes:
        slo: as written.
        rate_per_s: requests per second.
        candidates: cheapest first, then those that fail.
    """

    slo: list[str]
    rate_per_s: float
    candidates: list[Candidate]


class Plan(msgspec.Struct, frozen=True):
    """A whole plan.

    Attributes:
        model: the model.
        traffic: lengths of prompts and answers. Under a load of sessions without a given share, cached tokens are what
            an unlimited cache finds, and each device has the share of its own cache.
        memory_bytes: number of sequences → context of each in tokens → bytes of weights and KV cache.
        devices: one for each GPU.
        efficiency: of the engine.
        prefix_cache: under sessions of a workload; None without one.
        sizing: of the SLO; None without one.
        calibration: from measured runs; empty without one.
        assumptions: of the predictions.
    """

    model: ModelFacts
    traffic: Traffic
    memory_bytes: dict[int, dict[int, float]]
    devices: list[DevicePlan]
    efficiency: Efficiency
    prefix_cache: PrefixCachePlan | None
    sizing: Sizing | None
    calibration: list[Calibration]
    assumptions: list[str]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan; the options of ``bakeoff plan`` have the same names and defaults.

    Attributes:
        model: name of a known model, path of its config.json, or its folder.
        gpu: names of GPUs; empty for all of the table.
        gpus: a TOML file of more GPUs.
        machine: output of ``bakeoff lab machine --json``.
        precision: of the weights.
        kv: precision of the KV cache.
        tensor_parallel: GPUs that split each layer; None for the fewest that hold the model.
        load: sessions in progress; None for requests that have nothing to do with each other.
        input_tokens: of each prompt; None for the mean of the load's, or 1,024 without one.
        output_tokens: of each answer; None for the mean of the load's, or 256 without one.
        cached_share: of each prompt, in the prefix cache; None for what each device finds of the load's, or 0 without.
        cached_discount: share of a prompt token's price that is not charged for a cached one.
        sequences: requests that a server runs at once.
        step_tokens: tokens that a server computes per step; None for 8192, on a CPU 512.
        memory_fraction: of a GPU's memory, that the engine may take.
        price: GPU name → price of one GPU hour; ``""`` → price of all others.
        slo: objectives, such as ``ttft_p90<500ms,itl_p90<50ms``.
        rate: requests per second.
        from_run: folders of measured runs of this model on the first GPU.
        engine: label of the engine in those runs; None for the first.
        seed: of the arrivals.
    """

    model: str
    gpu: Sequence[str] = ()
    gpus: Path | None = None
    machine: Path | None = None
    precision: str = "bf16"
    kv: str = "bf16"
    tensor_parallel: int | None = None
    load: SessionLoad | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_share: float | None = None
    cached_discount: float = 0.0
    sequences: int = 256
    step_tokens: int | None = None
    memory_fraction: float = USABLE_SHARE
    price: Mapping[str, float] = {}
    slo: str | None = None
    rate: float | None = None
    from_run: Sequence[Path] = ()
    engine: str | None = None
    seed: int = 1


def make_plan(question: Question) -> Plan:
    """Answer a question.

    Raises:
        BadPlan: the question names something unknown or contradicts itself.
        WorkloadError: something is wrong with the workload of the load.
        ResultsError: an objective is malformed, or a run cannot be read.
    """
    _check(question)
    wanted = objectives(question.slo) if question.slo is not None else []
    check_predictable(wanted)
    model, precision, cache = load_model(question.model), precision_named(question.precision), cache_named(question.kv)
    simulated = None if question.load is None else simulate_load(question.load, question.seed)
    traffic, longest = _traffic(question, simulated), model.config.max_length
    if traffic.tokens > longest:
        raise BadPlan(
            f"requests of {traffic.tokens:,} tokens exceed the {longest:,} of {model.name}; lower --input or --output"
        )
    table = gpu_table(question.gpus, question.machine)
    chosen(table, filter(None, question.price))  # refuses prices of unknown GPUs
    devices = chosen(table, question.gpu)
    calibration = _calibrated(question, functools.partial(Fitter, model, precision, cache, devices[0]))
    efficiency, runtime_bytes = _known(calibration, question.engine, devices[0])
    setting = Setting(
        model=model,
        precision=precision,
        cache=cache,
        traffic=traffic,
        sequences=question.sequences,
        step_tokens=question.step_tokens,
        usable_share=question.memory_fraction,
        runtime_bytes=runtime_bytes,
        efficiency=efficiency,
        seed=question.seed,
    )
    costs = model.costs(precision, cache)
    finds = simulated if question.cached_share is None else None
    planned = [
        device_plan(_on(setting, gpu, ranks, finds), gpu, ranks, Price(_price(question, gpu), question.cached_discount))
        for gpu in devices
        for ranks in [question.tensor_parallel or fewest_ranks(setting, gpu)]
    ]
    return Plan(
        model=ModelFacts(
            name=model.name,
            parameters=costs.parameters,
            active_parameters=model.active_parameters,
            weight_bytes=costs.weight_bytes,
            kv_bytes_per_token=costs.kv_bytes_per_token,
            kv_parts=model.kv_parts,
            max_length=model.config.max_length,
            precision=precision.name,
            layout=precision.layout,
            cache=cache.name,
        ),
        traffic=setting.traffic,
        memory_bytes={
            count: {context: costs.memory_bytes(count, context) for context in contexts_of(setting)}
            for count in _SEQUENCES_DRAWN
        },
        devices=planned,
        efficiency=efficiency,
        prefix_cache=None
        if simulated is None
        else simulated.plan(planned, costs.kv_bytes_per_token, is_planned=finds is not None),
        sizing=_sizing(question, setting, devices, wanted, finds),
        calibration=calibration,
        assumptions=_assumptions(setting, devices, simulated, finds),
    )


def prices(given: float | str | Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """Prices of GPU hours by name from ``h200=3.5``, or ``3.5`` for every other.

    Args:
        given: one or several of these; a number for every GPU; or the result itself.

    Raises:
        BadPlan: one is malformed.
    """
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, int | float):
        return {"": float(given)}
    by_name: dict[str, float] = {}
    for text in [given] if isinstance(given, str) else given:
        name, _, number = text.rpartition("=")
        try:
            by_name[name.strip().lower()] = float(number)
        except ValueError as error:
            raise BadPlan(f"'{text}' is not a price; write it like h200=3.5, or 3.5 for all GPUs") from error
    return by_name


def _check(question: Question) -> None:
    """Raises BadPlan for values out of range."""
    checks = (
        (question.input_tokens is None or question.input_tokens >= 1, "--input must be at least 1 token"),
        (question.output_tokens is None or question.output_tokens >= 1, "--output must be at least 1 token"),
        (
            question.cached_share is None or 0 <= question.cached_share < 1,
            "--cached-share must be at least 0 and below 1",
        ),
        (question.load is None or question.load.sessions >= 1, "--sessions must be at least 1"),
        (question.sequences >= 1, "--sequences must be at least 1"),
        (0 <= question.cached_discount <= 1, "--cached-discount must be between 0 and 1"),
        (question.step_tokens is None or question.step_tokens >= 1, "--step-tokens must be at least 1"),
        (0 < question.memory_fraction <= 1, "--memory-fraction must be above 0 and at most 1"),
        (question.rate is None or 0 < question.rate < math.inf, "--rate must be above 0, and finite"),
        ((question.slo is None) == (question.rate is None), "--slo and --rate belong together: give both or neither"),
        (question.tensor_parallel is None or question.tensor_parallel >= 1, "--tensor-parallel must be at least 1"),
        (question.engine is None or bool(question.from_run), "--engine names an engine of --from-run; give that, too"),
        (
            not question.from_run or bool(question.gpu),
            "--from-run needs --gpu: the device that the run was measured on",
        ),
        (all(0 < price < math.inf for price in question.price.values()), "--price must be above 0, and finite"),
        (question.seed >= 0, "--seed must be at least 0"),
    )
    if problem := next((problem for is_ok, problem in checks if not is_ok), None):
        raise BadPlan(problem)


def _traffic(question: Question, simulated: SimulatedLoad | None) -> Traffic:
    """Lengths as given, else as the load's means, else the defaults."""
    inputs, outputs, share = question.input_tokens, question.output_tokens, question.cached_share
    if inputs is None:
        inputs = _INPUT_TOKENS if simulated is None else simulated.input_tokens
    if outputs is None:
        outputs = _OUTPUT_TOKENS if simulated is None else simulated.output_tokens
    if share is None:
        share = 0.0 if simulated is None else simulated.hits.share()
    return Traffic(inputs, outputs, int(inputs * share))


def _on(setting: Setting, gpu: Gpu, ranks: int, simulated: SimulatedLoad | None) -> Setting:
    """The setting on a device, whose prefix cache finds what it has room for; as it is without a load."""
    if simulated is None:
        return setting
    share = simulated.share_on(setting.memory(gpu, ranks))
    cached = int(setting.traffic.input_tokens * share)
    return msgspec.structs.replace(setting, traffic=msgspec.structs.replace(setting.traffic, cached_tokens=cached))


def _calibrated(question: Question, fitter: Callable[[int], Fitter]) -> list[Calibration]:
    """Calibrations by the runs; `fitter` takes the number of GPUs that an engine ran on."""
    engines = [engine for path in question.from_run for engine in measured_engines(path)]
    names = list(dict.fromkeys(engine.engine for engine in engines))
    if question.engine is not None and question.engine not in names:
        raise BadPlan(f"these runs have no engine '{question.engine}'; they have {', '.join(names)}")
    wanted = [engine for engine in engines if question.engine in {None, engine.engine}]
    if pipeline := next((engine for engine in wanted if engine.stages > 1), None):
        raise BadPlan(
            f"{pipeline.engine} ran with pipeline parallelism in {pipeline.run}, which is not planned; choose an "
            "--engine or a run without it"
        )
    return [calibrate(fitter(engine.ranks), engine) for engine in wanted]


def _known(calibrations: Sequence[Calibration], engine: str | None, gpu: Gpu) -> tuple[Efficiency, float]:
    """Efficiency and runtime memory: of the engine, else of the first one, else typical values.

    A run on a GPU does not show the runtime's memory: the engine reserves its share of the GPU, weights, KV cache and
    all, and what is measured beyond lies outside that share.
    """
    calibration = next((candidate for candidate in calibrations if engine in {None, candidate.engine}), None)
    if calibration is None:
        return TYPICAL, RUNTIME_BYTES
    measured = calibration.fixed_bytes if gpu.name == "cpu" else None
    return calibration.efficiency, RUNTIME_BYTES if measured is None else max(0.0, measured)


def _price(question: Question, gpu: Gpu) -> float | None:
    by_name = {name.lower(): price for name, price in question.price.items()}
    return by_name.get(gpu.name.lower(), by_name.get(""))


def _sizing(
    question: Question,
    setting: Setting,
    devices: Sequence[Gpu],
    wanted: Sequence[Objective],
    finds: SimulatedLoad | None,
) -> Sizing | None:
    if question.rate is None:
        return None
    ranks = RANKS if question.tensor_parallel is None else (question.tensor_parallel,)
    judged = [
        candidate(
            _on(setting, gpu, count, finds), gpu, count, wanted, rate_per_s=question.rate, price=_price(question, gpu)
        )
        for gpu in devices
        for count in ranks
        if count == 1 or gpu.link_bytes_per_s is not None or question.tensor_parallel
    ]
    return Sizing([objective.text for objective in wanted], question.rate, cheapest_first(judged))


def _assumptions(
    setting: Setting, devices: Sequence[Gpu], simulated: SimulatedLoad | None, finds: SimulatedLoad | None
) -> list[str]:
    efficiency = setting.efficiency
    step_tokens = " or ".join(f"{tokens:,}" for tokens in sorted({setting.step_tokens_of(gpu) for gpu in devices}))
    return [
        f"engine: {efficiency.source}: {_efficiency_text(efficiency)}",
        (
            f"server: up to {setting.sequences} sequences, {step_tokens} tokens a step, chunked prefill beside "
            f"decodes, {setting.usable_share:.0%} of the memory"
        ),
        (
            f"tensor parallelism: two all-reduces a layer in a ring, with {ALL_REDUCE_S * 1e6:.0f} µs of latency each "
            f"and {PEER_S * 1e6:.0f} µs for each other GPU"
        ),
        "energy: every GPU at its maximum power, an upper bound",
        *([] if simulated is None else [simulated.assumption]),
        *([] if finds is None else ["prompts: each GPU computes the tokens that its own prefix cache does not find"]),
    ]


def _efficiency_text(fit: Efficiency) -> str:
    return (
        f"{fit.bytes_share:.2f} of the device's bandwidth, {fit.flops_share:.2f} of its products, "
        f"{fit.step_s * 1e3:.2f} ms a step, {fit.sequence_s * 1e6:.0f} µs for each sequence in it, "
        f"{fit.request_s * 1e3:.1f} ms a request, {fit.token_s * 1e6:.0f} µs a token in the front end, "
        f"{fit.idle_s * 1e3:.1f} ms more for a step on an idle engine"
    )
