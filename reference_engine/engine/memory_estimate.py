"""Memory that an engine will take, from its settings and a config.json, before any weight is loaded.

Weights and KV cache are counted; the workspace is the peak of the largest step (`largest_batch`), counted where most is
alive at once: in the feed-forward network, in attention, and for the logits with a draw from them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.engine.executors import max_rows_of
from bakeoff.reference_engine.engine.resolution import DTYPES, demand_of
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kernels.gemm import can_tile
from bakeoff.reference_engine.loading.checkpoint import Checkpoint
from bakeoff.reference_engine.models.config_readers import GemmaConfig, MoeConfig
from bakeoff.reference_engine.models.costs import ModelCosts
from bakeoff.reference_engine.models.execution import SLAB_ROWS
from bakeoff.reference_engine.models.linear import can_pack
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.weight_bytes import (
    Loading,
    layer_matrices,
    product_bytes,
    quantised_bytes,
    quantised_matrices,
)
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix, stacked

_DOWN = ("down_proj", "w2")
_ROUTED_BYTES = 24
"""For each expert that a token chose: its number, its place in the order of experts, and a weight."""
_SCORED_BYTES, _DRAWN_BYTES = 14, 8
"""For each logit of a scored slab and of a row to draw from: the logit in float32 and the results computed from it."""
_GIB = 1 << 30
_CUBLAS_BYTES = 32 << 20
"""Torch's default workspace of cuBLAS on GPUs like the H100."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of one process on its device.

    Attributes:
        weights: with rotary tables; those in host memory are left out, their buffers are not.
        kv_cache: all blocks, scales of quantised caches included.
        workspace: the peak of a step beside them.
    """

    weights: int
    kv_cache: int
    workspace: int

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.kv_cache + self.workspace


def estimate_memory(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> MemoryEstimate:
    """The memory of an engine in one process.

    Args:
        config: as `resolve_config` returned it, with the size of its cache.
        checkpoint: of the model; no weight is read.
        device: where the model would be computed; it need not exist here.
    """
    model, demand = checkpoint.config, demand_of(config, checkpoint.config)
    loading = Loading(DTYPES[config.dtype], device, config.quantization, checkpoint.format)
    blocks = (size + 1 for size in demand.sizes(config.num_blocks or 0))  # one for padding
    cache = config.block_size * sum(count * size for count, size in zip(blocks, demand.token_bytes, strict=True))
    costs = ModelCosts(model, loading.dtype.itemsize, quantised=quantised_bytes(model, loading))
    weights = int(costs.weight_bytes) + _packed_bytes(model, loading)
    weights -= _offloaded_bytes(config, product_bytes(model, loading))
    tables = 2 if isinstance(model, GemmaConfig) and model.local_rope_theta is not None else 1
    rotary = 2 * tables * demand.max_model_len * model.head_dim * loading.dtype.itemsize
    workspace = _Workspace(model, loading, demand.max_num_batched_tokens, max_rows_of(config, demand))
    return MemoryEstimate(weights + rotary, cache, workspace.bytes)


def check_weights_fit(config: EngineConfig, checkpoint: Checkpoint, gpu_bytes: int) -> None:
    """Refuses a model whose weights alone exceed what a process may use of its GPU.

    Args:
        config: as `resolve_config` returned it.
        checkpoint: of the model.
        gpu_bytes: of the GPU's memory.

    Raises:
        ConfigError: they exceed it; the message says how to make them fit.
    """
    if checkpoint.path.is_file() and config.quantization == "stored":
        return  # blocks of GGUF files are not counted
    device = torch.device("cuda")
    whole = estimate_memory(dataclasses.replace(config, cpu_offload_gb=0.0), checkpoint, device).weights
    weights = whole // config.num_parts
    if config.cpu_offload_gb:
        loading = Loading(DTYPES[config.dtype], device, config.quantization, checkpoint.format)
        products = product_bytes(checkpoint.config, loading)
        weights -= _offloaded_bytes(config, {name: size // config.num_parts for name, size in products.items()})
    most = int(gpu_bytes * config.gpu_memory_utilization)
    if weights > most:
        missing_gib = config.cpu_offload_gb + (weights - most) / _GIB
        raise ConfigError(
            f"the weights take {weights / _GIB:.3g} GiB, and --gpu-memory-utilization {config.gpu_memory_utilization} "
            f"of the GPU is {most / _GIB:.3g} GiB; make them smaller with --quantization, or keep some in host memory "
            f"with --cpu-offload-gb {missing_gib:.3g} and more"
        )


def _packed_bytes(model: ModelConfig, loading: Loading) -> int:
    """Bytes of a copy of the embedding, packed for the CPU as the head."""
    if not model.tie_word_embeddings or loading.device.type != "cpu":
        return 0
    embedding = torch.empty(model.vocab_size, model.hidden_size, dtype=loading.dtype)  # never written
    return embedding.nbytes if can_tile(embedding) or can_pack(embedding) else 0


def _offloaded_bytes(config: EngineConfig, products: Mapping[str, int]) -> int:
    """Approximate bytes that offloading frees: it takes whole products, and its two buffers fit the largest."""
    budget = min(int(config.cpu_offload_gb * _GIB), sum(products.values()))
    return max(0, budget - 2 * max(products.values()))


class _Workspace:
    """The peak of a step.

    Args:
        model: whose weights are loaded.
        loading: how they are kept.
        tokens: of the step.
        rows: sampled ones.
    """

    def __init__(self, model: ModelConfig, loading: Loading, tokens: int, rows: int) -> None:
        self._model, self._loading, self._tokens, self._rows = model, loading, tokens, rows
        self._shapes, self._quantised = layer_matrices(model), quantised_matrices(model, loading)

    @property
    def bytes(self) -> int:
        """The largest phase, and what libraries keep."""
        layers = range(self._model.num_hidden_layers)
        phases = [self._logits, *(phase(layer) for layer in layers for phase in (self._attention, self._feed_forward))]
        return max(phases) + (_CUBLAS_BYTES if self._loading.device.type == "cuda" else 0)

    def _elements(self, count: int) -> int:
        """Bytes of `count` numbers for each token."""
        return self._tokens * count * self._loading.dtype.itemsize

    def _attention(self, layer: int) -> int:
        """Input and output, queries, keys and values, and the attended keys and values, beside the residual stream."""
        model, prefix = self._model, f"{layer_prefix(layer)}self_attn."
        heads, key_dim, value_dim, _ = model.cached_vectors
        queries = model.num_attention_heads * key_dim
        # Queries and keys are rotated into a copy, unless a kernel does it in place; the result has values' size.
        held = queries + heads * (key_dim + value_dim) + model.num_attention_heads * value_dim
        rotated = 0 if self._loading.device.type == "cuda" else queries + heads * key_dim
        return self._elements(3 * model.hidden_size + held + rotated) + self._call(prefix, ("o_proj",), self._tokens)

    def _feed_forward(self, layer: int) -> int:
        """Input, outputs of the attention and of the layer before, beside the residual stream, and the widest phase."""
        model, prefix = self._model, layer_prefix(layer)
        beside = self._elements(4 * model.hidden_size)
        if not isinstance(model, MoeConfig) or layer in model.dense_layers:
            return beside + self._gated(f"{prefix}mlp.", self._tokens)
        # The sum of all experts is float32.
        chosen, experts = self._tokens * model.num_experts_per_tok, f"{prefix}{model.names.block}experts."
        beside += self._tokens * model.hidden_size * 4 + chosen * _ROUTED_BYTES
        is_quantised = any(name.startswith(experts) for name in self._quantised)
        if self._loading.device.type == "cuda" and not is_quantised:
            width = self._shapes[f"{experts}0.{model.names.parts[-1]}.weight"][1]
            return beside + chosen * max(3 * width, width + model.hidden_size) * self._loading.dtype.itemsize
        rows = -(-chosen // model.num_experts)  # routers are assumed to choose evenly
        gathered = 2 * rows * model.hidden_size * self._loading.dtype.itemsize
        return beside + gathered + self._gated(f"{experts}0.", rows)

    def _gated(self, prefix: str, rows: int) -> int:
        """A network with gates."""
        present = {name.removeprefix(prefix): shape for name, shape in self._shapes.items() if name.startswith(prefix)}
        down = next(name for name in present if name.startswith(_DOWN))
        first = tuple(name.removesuffix(".weight") for name in present if name != down)
        width = rows * present[down][1] * self._loading.dtype.itemsize
        products = self._call(prefix, first, rows), width + self._call(prefix, (down.removesuffix(".weight"),), rows)
        return max(*products, 3 * width)

    def _call(self, prefix: str, parts: tuple[str, ...], rows: int) -> int:
        """Bytes of a product with matrices side by side, result included."""
        names = [f"{prefix}{part}.weight" for part in parts]
        matrices = [self._quantised[name] for name in names if name in self._quantised]
        if len(matrices) == len(names):
            return self._quantised_call(matrices, rows)
        width = sum(self._shapes[name][0] for name in names)
        return rows * width * self._loading.dtype.itemsize

    def _quantised_call(self, matrices: Sequence[QuantisedMatrix], rows: int) -> int:
        """Matrices with different orders are multiplied one after another, and their results joined."""
        loading = self._loading
        if all(not isinstance(matrix, IntegerMatrix) or matrix.order is None for matrix in matrices):
            return stacked(matrices).call_bytes(rows, loading.device, loading.dtype)
        peak = earlier = 0
        for matrix in matrices:
            peak = max(peak, earlier + matrix.call_bytes(rows, loading.device, loading.dtype))
            earlier += rows * matrix.shape[0] * loading.dtype.itemsize
        return peak if len(matrices) == 1 else max(peak, 2 * earlier)

    @property
    def _logits(self) -> int:
        """Logits of a slab of scored rows, then of the rows to draw from, beside the hidden states."""
        slab = min(SLAB_ROWS, self._tokens) * self._model.vocab_size
        logits = max(slab * _SCORED_BYTES, slab * 4 + self._rows * self._model.vocab_size * _DRAWN_BYTES)
        return self._elements(2 * self._model.hidden_size) + logits
