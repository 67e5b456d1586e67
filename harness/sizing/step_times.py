"""Duration of one step of an engine.

A step's products read weights while they compute, so the slower of the two counts; reading the KV cache is added::

    step_s + sequence_s · sequences + max(weight bytes / (b · B), operations / (f · F)) + KV bytes / (b · B)
    + all-reduces of tensor parallelism

Weights that are only stored in fewer bits are converted before they multiply; there the two add instead. B and F are
the device's bandwidth and products per second, b and f the engine's shares of them, times the shares of the
precision unless b and f were fitted in it. Without shares and fixed times this is the floor of an engine whose kernels
run one after the other; :func:`floor_s` lets them overlap.
"""

from collections.abc import Sequence

import msgspec

from bakeoff.harness.sizing.gpus import Gpu
from bakeoff.harness.sizing.model import Chunk, Machine, ModelCosts, StepCosts, without_cache
from bakeoff.harness.sizing.precision import Precision
from bakeoff.harness.sizing.server import Delays

_PAST_STEP = 64  # tokens: decodes with closer mean contexts share one cached count
_ACTIVATION_BYTES = 2
_ALL_REDUCES = 2  # per layer, after attention and after the feed-forward network (Megatron-LM, arXiv 1909.08053)
ALL_REDUCE_S, PEER_S = 10e-6, 2e-6
"""Latency of one all-reduce over NVLink, and what each other GPU adds to it; fitted to vLLM 0.24 on two and four H200
(docs/results/h200-four-gpus)."""


class Efficiency(msgspec.Struct, frozen=True):
    """How well an engine uses a device.

    Attributes:
        bytes_share: of the device's bandwidth.
        flops_share: of its products per second.
        step_s: fixed seconds of a step: launches, scheduling, sampling.
        sequence_s: seconds of a step for each sequence in it.
        request_s: as in :class:`Delays`.
        token_s: as in :class:`Delays`.
        idle_s: as in :class:`Delays`.
        source: where the figures come from.
        adapter: of the engine, whose kernels read weights in fewer bits.
        precision: of the weights from whose step times the shares come; for others those of the precision come on top.
    """

    bytes_share: float = 1.0
    flops_share: float = 1.0
    step_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0
    idle_s: float = 0.0
    source: str = "the device's limits, no overhead"
    adapter: str = "vllm"
    precision: str = "bf16"

    @property
    def delays(self) -> Delays:
        """Times that the server spends outside its steps."""
        return Delays(self.request_s, self.token_s, self.idle_s)


class Work(msgspec.Struct, frozen=True):
    """Demands of one step on one GPU."""

    weight_bytes: float
    kv_bytes: float
    flops: float
    sequences: int
    reduced_bytes: float


class StepWork:
    """Counts work of steps; caches results, because a simulation repeats steps.

    Args:
        costs: of the whole model.
        ranks: GPUs of tensor parallelism.
    """

    def __init__(self, costs: ModelCosts, ranks: int = 1) -> None:
        self._costs, self._ranks = costs, ranks
        self._uncached = without_cache(costs)
        self._known: dict[tuple[int, int, tuple[tuple[int, int], ...]], Work] = {}

    def of(self, decodes: int, past: float, prompts: Sequence[tuple[int, int]] = ()) -> Work:
        """Work of one step.

        Args:
            decodes: sequences that decode one token.
            past: their mean context in tokens. With windows the mean over sequences is an approximation.
            prompts: new and cached tokens of each chunk of a prompt.
        """
        key = decodes, round(past / _PAST_STEP), tuple(prompts)
        work = self._known.get(key)
        if work is None:
            work = self._known[key] = self._count(decodes, key[1] * _PAST_STEP, prompts)
        return work

    def _count(self, decodes: int, past: int, prompts: Sequence[tuple[int, int]]) -> Work:
        config = self._costs.config
        chunks = [Chunk(length, cached) for length, cached in prompts]
        chunks += [Chunk(past=past, count=decodes)] if decodes else []
        weight_bytes, kv_bytes, flops = _on_each_gpu(self._costs, self._uncached, self._ranks, chunks)
        tokens = decodes + sum(length for length, _ in prompts)
        reduced = _ALL_REDUCES * config.num_hidden_layers * tokens * config.hidden_size * _ACTIVATION_BYTES
        return Work(
            weight_bytes=weight_bytes,
            kv_bytes=kv_bytes,
            flops=flops,
            sequences=decodes + len(prompts),
            reduced_bytes=reduced if self._ranks > 1 else 0.0,
        )

    def reduce_s(self, work: Work, gpu: Gpu) -> float:
        """Seconds of a step's all-reduces in a ring: 2 (n−1)/n of the bytes over each link, and a latency each."""
        if self._ranks == 1:
            return 0.0
        assert gpu.link_bytes_per_s is not None
        peers = self._ranks - 1
        ring = 2 * peers / self._ranks * work.reduced_bytes / gpu.link_bytes_per_s
        return ring + _ALL_REDUCES * self._costs.config.num_hidden_layers * (ALL_REDUCE_S + PEER_S * peers)


def kv_share(costs: ModelCosts, ranks: int) -> float:
    """Share of the KV cache on each GPU; more GPUs than key/value heads keep copies."""
    return 1.0 / min(ranks, costs.config.cached_vectors.num_kv_heads)


class StepTimes:
    """Seconds of steps of one engine on one device.

    Args:
        work: counts the work.
        gpu: the device.
        precision: of the weights, which determines the data type of the products.
        efficiency: of the engine.
    """

    def __init__(self, work: StepWork, gpu: Gpu, precision: Precision, efficiency: Efficiency) -> None:
        self._work, self._gpu, self.efficiency = work, gpu, efficiency
        if efficiency.precision == precision.name:
            precision = precision.without_shares
        self._bytes_per_s = gpu.bytes_per_s * efficiency.bytes_share
        self._weights_per_s = self._bytes_per_s * precision.read_share_of(efficiency.adapter)
        # A device without products in 8 bits converts such weights for its products in bf16.
        is_native = precision.weight_bits >= 16 or precision.compute in gpu.flops_per_s
        self._converts = precision.converts or not is_native
        product_share = precision.product_share if is_native else 1.0
        self._flops_per_s = gpu.flops(precision.compute) * efficiency.flops_share * product_share

    def seconds(self, decodes: int, past: float, prompts: Sequence[tuple[int, int]] = ()) -> float:
        """Duration of one step; see :meth:`StepWork.of`."""
        work = self._work.of(decodes, past, prompts)
        reads, operations = work.weight_bytes / self._weights_per_s, work.flops / self._flops_per_s
        products = reads + operations if self._converts else max(reads, operations)
        fixed = self.efficiency.step_s + self.efficiency.sequence_s * work.sequences
        return fixed + products + work.kv_bytes / self._bytes_per_s + self._work.reduce_s(work, self._gpu)


def limits(gpu: Gpu, precision: Precision) -> Machine:
    """The device in the form that :func:`floor_s` takes."""
    return Machine(gpu.bytes_per_s, gpu.flops(precision.compute))


def costs_per_gpu(costs: ModelCosts, ranks: int, chunks: Sequence[Chunk]) -> StepCosts:
    """Costs of a step on each GPU of tensor parallelism, with infinitely fast links."""
    weight_bytes, kv_bytes, flops = _on_each_gpu(costs, without_cache(costs), ranks, chunks)
    return StepCosts(weight_bytes + kv_bytes, flops)


def _on_each_gpu(
    costs: ModelCosts, uncached: ModelCosts, ranks: int, chunks: Sequence[Chunk]
) -> tuple[float, float, float]:
    """Bytes of weights, bytes of the KV cache, and operations of a step on each GPU."""
    step, weights = costs.step(chunks), uncached.step(chunks).bytes
    return weights / ranks, (step.bytes - weights) * kv_share(costs, ranks), step.flops / ranks
