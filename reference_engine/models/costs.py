"""Bytes, operations and memory of a model, counted from its config.json, and the time that a machine needs for them.

A roofline model (Williams et al., CACM 2009): a step cannot be faster than its operations at the machine's peak rate,
nor than its memory traffic at the machine's bandwidth. Only traffic that cannot be avoided counts: each weight that the
step uses is read once, cached keys and values are read once by each layer that uses them, new ones are written once.
Activations are left out.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.quantization_names import KvCacheDtypeName
from bakeoff.reference_engine.kv_cache.layout import row_bytes
from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.names import ENDS, ROUTER_VECTORS, ROUTERS
from bakeoff.reference_engine.models.shapes import Shape, weight_shapes

_FLOAT32_BYTES = 4  # of routers, see `Experts`, and of norms that are stored less an offset, see `Weights`


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Peak rates of a device: bytes per second from its memory, and operations per second in some dtype."""

    bytes_per_s: float
    flops_per_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one sequence, or of several equal ones.

    Attributes:
        length: new tokens of each sequence.
        past: already cached tokens of each sequence.
        count: sequences.
        is_sampled: whether logits for the last token are needed, which takes the output matrix.
    """

    length: int = 1
    past: int = 0
    count: int = 1
    is_sampled: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class StepCosts:
    """Memory traffic in bytes and floating-point operations (a multiplication and an addition are two)."""

    bytes: float
    flops: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Layers:
    """Layers with one window in tokens: their number, and bytes of a token's keys and values, cached and read."""

    window: int | None
    count: int
    kv_bytes: float
    read_bytes: float


def floor_s(step: StepCosts, machine: Machine) -> float:
    """Lower bound, in seconds, of the step's duration on this machine."""
    return max(step.bytes / machine.bytes_per_s, step.flops / machine.flops_per_s)


@dataclasses.dataclass(frozen=True)
class ModelCosts:
    """Costs of one model.

    Attributes:
        config: of the whole model.
        weight_bytes_each: bytes of one weight; 2 for bfloat16.
        kv_bytes_each: bytes of one cached element; those of quantised caches follow from `kv_cache_dtype`.
        end_bytes_each: bytes of one weight of embedding and output matrix; None for `weight_bytes_each`.
        quantised: bytes of quantised weights, by name (`weight_bytes.quantised_bytes`).
        kv_cache_dtype: see `EngineConfig`.
    """

    config: ModelConfig
    weight_bytes_each: float = 2
    kv_bytes_each: float = 2
    end_bytes_each: float | None = None
    quantised: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    kv_cache_dtype: KvCacheDtypeName = "auto"

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in weight_shapes(self.config).values())

    @property
    def weight_bytes(self) -> float:
        """Memory of all weights; routers of experts, and norms with an offset, are kept in float32."""
        return sum(self._bytes)

    @functools.cached_property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token adds to the KV cache in all layers."""
        return sum(layers.kv_bytes for layers in self._layers)

    def memory_bytes(self, sequences: int, tokens: int) -> float:
        """Weights, and the KV cache of `sequences` of `tokens` each; a layer with a window caches only the window."""
        kv_bytes = sum(layers.kv_bytes * min(tokens, layers.window or tokens) for layers in self._layers)
        return self.weight_bytes + sequences * kv_bytes

    def decode(self, sequences: int, past: int) -> StepCosts:
        """One step that adds a token to each of `sequences`, which have `past` tokens."""
        return self.step([Chunk(past=past, count=sequences)])

    def step(self, chunks: Sequence[Chunk]) -> StepCosts:
        """One step over all chunks."""
        tokens = sum(chunk.count * chunk.length for chunk in chunks)
        rows = sum(chunk.count for chunk in chunks if chunk.is_sampled)
        _, dense, experts = self._sizes
        head = self.config.vocab_size * self.config.hidden_size
        active = self._active_share
        flops = 2.0 * (tokens * (dense + experts * active) + rows * head)
        # Assumes that the router chooses evenly: a token misses an expert with probability 1 - active. The embedding is
        # looked up, not read as a whole; if it is also the output matrix, it is read as that.
        _, dense_bytes, expert_bytes = self._bytes
        moved = dense_bytes + expert_bytes * (1.0 - (1.0 - active) ** tokens) + bool(rows) * self._head_bytes
        for chunk in chunks:
            flops += chunk.count * self._attention_flops(chunk)
            moved += chunk.count * self._kv_traffic(chunk)
        return StepCosts(moved, flops)

    def run_floor_s(self, requests: int, prompt: int, output: int, machine: Machine, *, seats: int = 256) -> float:
        """Seconds for requests that all arrive at once and run `seats` at a time: each prompt, then its decodes."""
        total = 0.0
        for first in range(0, requests, seats):
            count = min(seats, requests - first)
            total += floor_s(self.step([Chunk(prompt, count=count)]), machine)
            total += sum(floor_s(self.decode(count, past), machine) for past in range(prompt, prompt + output - 1))
        return total

    @functools.cached_property
    def _layers(self) -> Sequence["_Layers"]:
        """The layers, grouped by window."""
        config = self.config
        windows, size = config.windows or (None,) * config.num_hidden_layers, self._kv_bytes
        cached = [window for layer, window in enumerate(windows) if config.shared_layer(layer) is None]
        return [
            _Layers(window, windows.count(window), cached.count(window) * size, windows.count(window) * size)
            for window in dict.fromkeys(windows)
        ]

    @functools.cached_property
    def _sizes(self) -> tuple[float, float, float]:
        """Numbers of weights: embedding and output matrix, those that every token is multiplied by, and experts."""
        return _split({name: math.prod(shape) for name, shape in weight_shapes(self.config).items()})

    @functools.cached_property
    def _bytes(self) -> tuple[float, float, float]:
        """Bytes of the weights that `_sizes` counts."""
        return _split({name: self._bytes_of(name, shape) for name, shape in weight_shapes(self.config).items()})

    @property
    def _head_bytes(self) -> float:
        """Bytes of the output matrix, which may be the embedding."""
        embedding, head = ENDS
        name = embedding if self.config.tie_word_embeddings else head
        return self._bytes_of(name, (self.config.vocab_size, self.config.hidden_size))

    def _bytes_of(self, name: str, shape: Shape) -> float:
        if name in self.quantised:
            return self.quantised[name]
        itemsize = self.weight_bytes_each
        if name in ENDS and self.end_bytes_each is not None:
            itemsize = self.end_bytes_each
        elif name.endswith((*ROUTERS, *ROUTER_VECTORS)) or (self.config.norm_offset != 0.0 and "norm." in name):
            itemsize = _FLOAT32_BYTES
        return math.prod(shape) * itemsize

    @property
    def _active_share(self) -> float:
        """Share of the experts that a token goes through."""
        config = self.config
        return config.num_experts_per_tok / config.num_experts if isinstance(config, MoeConfig) else 0.0

    @property
    def _kv_bytes(self) -> float:
        """Bytes of one token in one layer."""
        heads, key_dim, value_dim, value_in_key = self.config.cached_vectors
        return heads * sum(self._vector_bytes(dim) for dim in ((key_dim,) if value_in_key else (key_dim, value_dim)))

    def _vector_bytes(self, dim: int) -> float:
        """Bytes of a cached key or value in one head."""
        kv_row_bytes = row_bytes(self.kv_cache_dtype, dim)
        return dim * self.kv_bytes_each if kv_row_bytes is None else kv_row_bytes

    def _kv_traffic(self, chunk: Chunk) -> float:
        """Reads of the cached tokens that the chunk's first token sees, and writes of the chunk's own tokens."""
        return sum(
            layers.read_bytes * min(chunk.past, chunk.past if layers.window is None else layers.window - 1)
            + layers.kv_bytes * chunk.length
            for layers in self._layers
        )

    def _attention_flops(self, chunk: Chunk) -> float:
        """Products of queries with keys, and of their weights with values, over all pairs that see each other."""
        vectors = self.config.cached_vectors
        per_pair = 2.0 * self.config.num_attention_heads * (vectors.key_dim + vectors.value_dim)
        return per_pair * sum(layers.count * _pairs(chunk, layers.window) for layers in self._layers)


def _split(sizes: Mapping[str, float]) -> tuple[float, float, float]:
    """Sums over embedding and output matrix, over the weights that every token is multiplied by, and over experts."""
    ends = sum(sizes.get(name, 0) for name in ENDS)
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return ends, sum(sizes.values()) - ends - experts, experts


def _pairs(chunk: Chunk, window: int | None) -> int:
    """Sum over the chunk's tokens of the tokens that each sees: itself and those before it, at most `window`."""
    growing = chunk.length if window is None else min(chunk.length, max(0, window - chunk.past))
    return growing * chunk.past + growing * (growing + 1) // 2 + (chunk.length - growing) * (window or 0)
