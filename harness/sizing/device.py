"""The model on one kind of GPU: memory, floors, and the result of each batch."""

from collections.abc import Callable

import msgspec

from bakeoff.harness.sizing.gpus import Gpu
from bakeoff.harness.sizing.memory import Memory, fitting_sequences
from bakeoff.harness.sizing.model import Chunk, Machine, ModelCosts, floor_s
from bakeoff.harness.sizing.sizing import RANKS, Server, Setting
from bakeoff.harness.sizing.step_times import costs_per_gpu, limits

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_MOST = 1 << 16  # sequences: beyond, a decode counts as never compute-bound
_MILLION, _HOUR_S = 1e6, 3600.0


class Price(msgspec.Struct, frozen=True):
    """Price of a GPU, and of cached tokens.

    Attributes:
        per_hour: of one GPU; None if unknown.
        cached_discount: share of a prompt token's price that is not charged for a cached one.
    """

    per_hour: float | None = None
    cached_discount: float = 0.0


class BatchRow(msgspec.Struct, frozen=True):
    """One number of requests in flight, in a closed loop.

    Attributes:
        batch: requests in flight.
        itl_floor_s: of a decode step with the mean context, at the device's limits.
        is_memory_bound: whether memory traffic decides that floor.
        itl_p50_s: predicted; None for answers of one token.
        tpot_p50_s: predicted; None for answers of one token.
        ttft_p50_s: predicted, waiting for the steps of others included.
        output_tokens_per_s: predicted, prompts included in the time.
        requests_per_s: predicted.
        energy_per_output_token_j: upper bound, at the maximum power; None if that is unknown.
        cost_per_million_input: of prompt tokens, cached ones among them; None without a price.
        list_price_per_million_input: price of a prompt token that covers the cost of all when cached ones are billed
            with the discount; None without a price.
        cost_per_million_output: of output tokens; None without a price.
    """

    batch: int
    itl_floor_s: float
    is_memory_bound: bool
    itl_p50_s: float | None
    tpot_p50_s: float | None
    ttft_p50_s: float
    output_tokens_per_s: float
    requests_per_s: float
    energy_per_output_token_j: float | None
    cost_per_million_input: float | None
    list_price_per_million_input: float | None
    cost_per_million_output: float | None


class DevicePlan(msgspec.Struct, frozen=True):
    """The model on one kind of GPU.

    Attributes:
        gpu: its figures.
        ranks: GPUs of tensor parallelism.
        memory: on each of them.
        fitting: context in tokens → sequences of it that fit.
        ttft_floor_s: of a prompt alone, at the device's limits.
        itl_floor_s: of one sequence, at the device's limits.
        critical_batch: smallest batch whose decode is compute-bound with an empty context; None if there is none.
        critical_batch_at_context: the same at the mean context.
        batches: by ascending batch, those that fit.
        why_not: why the model cannot be served; None if it can be.
    """

    gpu: Gpu
    ranks: int
    memory: Memory
    fitting: dict[int, int]
    ttft_floor_s: float
    itl_floor_s: float
    critical_batch: int | None
    critical_batch_at_context: int | None
    batches: list[BatchRow]
    why_not: str | None = None


def device_plan(setting: Setting, gpu: Gpu, count: int, price: Price) -> DevicePlan:
    """Plan one kind of GPU.

    Args:
        setting: model, precision and traffic.
        gpu: the device.
        count: GPUs of tensor parallelism.
        price: of the GPU.
    """
    costs = setting.model.costs(setting.precision, setting.cache)
    memory, machine = setting.memory(gpu, count), limits(gpu, setting.precision)
    traffic = setting.traffic
    middle = traffic.input_tokens + traffic.output_tokens // 2
    prompt = Chunk(traffic.input_tokens - traffic.cached_tokens, traffic.cached_tokens)
    why_not = _why_not(setting, gpu, count)
    fitting = {context: fitting_sequences(memory, costs, count, context) for context in contexts_of(setting)}
    return DevicePlan(
        gpu=gpu,
        ranks=count,
        memory=memory,
        fitting=fitting,
        ttft_floor_s=floor_s(costs_per_gpu(costs, count, [prompt]), machine),
        itl_floor_s=floor_s(costs_per_gpu(costs, count, [Chunk(past=middle)]), machine),
        critical_batch=critical_batch(lambda batch: is_compute_bound(costs, machine, batch, 0, count)),
        critical_batch_at_context=critical_batch(lambda batch: is_compute_bound(costs, machine, batch, middle, count)),
        batches=[] if why_not else _rows(setting, gpu, count, min(fitting[traffic.tokens], setting.sequences), price),
        why_not=why_not,
    )


def contexts_of(setting: Setting) -> list[int]:
    """Contexts to plan for: powers of two within the model's length, and the requests' own."""
    own, longest = setting.traffic.tokens, setting.model.config.max_length
    return sorted({own, *(context for context in CONTEXTS if context <= longest)})


def fewest_ranks(setting: Setting, gpu: Gpu) -> int:
    """Fewest GPUs that hold the model and one request; if no number does, the most that split it."""
    splitting = [ranks for ranks in RANKS if setting.why_not_split(gpu, ranks) is None]
    return next((ranks for ranks in splitting if setting.fitting(gpu, ranks)), splitting[-1])


def _why_not(setting: Setting, gpu: Gpu, ranks: int) -> str | None:
    if detail := setting.why_not_split(gpu, ranks):
        return detail
    return None if setting.fitting(gpu, ranks) else setting.need_text(gpu, ranks)


def is_compute_bound(costs: ModelCosts, machine: Machine, batch: int, context: int, ranks: int = 1) -> bool:
    """Whether the products of a decode step take longer than its memory traffic on each of `ranks` machines."""
    step = costs_per_gpu(costs, ranks, [Chunk(past=context, count=batch)])
    return step.flops / machine.flops_per_s >= step.bytes / machine.bytes_per_s


def critical_batch(bound: Callable[[int], bool]) -> int | None:
    """Smallest batch that is compute-bound; None if none is, because KV reads grow with the batch, too."""
    if not bound(_MOST):
        return None
    low, high = 0, _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) else (middle, high)
    return high


def _rows(setting: Setting, gpu: Gpu, ranks: int, most: int, price: Price) -> list[BatchRow]:
    server = setting.server(gpu, ranks)
    batches = [batch for batch in BATCHES if batch < most]
    return [_row(setting, gpu, ranks, batch, server=server, price=price) for batch in [*batches, most]]


def _row(setting: Setting, gpu: Gpu, ranks: int, batch: int, *, server: Server, price: Price) -> BatchRow:
    costs, machine = setting.model.costs(setting.precision, setting.cache), limits(gpu, setting.precision)
    traffic = setting.traffic
    middle = traffic.input_tokens + traffic.output_tokens // 2
    served = server.closed(batch)
    output_per_s = served.requests_per_s * traffic.output_tokens
    # The first token comes from the prompt's step.
    decode_s = (traffic.output_tokens - 1) * server.decode_s(batch, middle) / batch
    prompt_s = max(0.0, 1 / served.requests_per_s - decode_s)
    second = None if price.per_hour is None else price.per_hour * ranks / _HOUR_S
    cost_in = None if second is None else second * prompt_s / traffic.input_tokens * _MILLION
    billed = 1 - traffic.cached_tokens / traffic.input_tokens * price.cached_discount
    return BatchRow(
        batch=batch,
        itl_floor_s=floor_s(costs_per_gpu(costs, ranks, [Chunk(past=middle, count=batch)]), machine),
        is_memory_bound=not is_compute_bound(costs, machine, batch, middle, ranks),
        itl_p50_s=served.itl(0.5),
        tpot_p50_s=served.tpot(0.5),
        ttft_p50_s=served.ttft(0.5),
        output_tokens_per_s=output_per_s,
        requests_per_s=served.requests_per_s,
        energy_per_output_token_j=None if gpu.tdp_w is None else gpu.tdp_w * ranks / output_per_s,
        cost_per_million_input=cost_in,
        list_price_per_million_input=None if cost_in is None else cost_in / billed,
        cost_per_million_output=None
        if second is None
        else second * (1 / served.requests_per_s - prompt_s) / traffic.output_tokens * _MILLION,
    )
