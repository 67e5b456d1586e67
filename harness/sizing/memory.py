"""Memory of one GPU: weights, KV cache, workspace and runtime."""

import msgspec

from bakeoff.harness.sizing.gpus import Gpu
from bakeoff.harness.sizing.model import Model, ModelCosts
from bakeoff.harness.sizing.step_times import kv_share

_ACTIVATION_BYTES, _LOGIT_BYTES = 2, 4
RUNTIME_BYTES = 0.6 * 2**30
"""CUDA context, libraries and graphs of one process; assumed."""
USABLE_SHARE = 0.9
"""Share of a GPU's memory that an engine may take."""


class Memory(msgspec.Struct, frozen=True):
    """Bytes on one GPU.

    Attributes:
        weights: of its share of the model.
        kv_per_token: of its share of one token's KV cache; with windows, of a token in reach of every layer.
        workspace: activations of the largest step, and logits.
        runtime: memory of the runtime, without the model.
        usable: memory that the engine can use.
    """

    weights: float
    kv_per_token: float
    workspace: float
    runtime: float
    usable: float

    @property
    def for_kv(self) -> float:
        """Bytes that remain for the KV cache; negative if the model does not fit."""
        return self.usable - self.weights - self.workspace - self.runtime


def memory_of(
    model: Model,
    costs: ModelCosts,
    gpu: Gpu,
    *,
    ranks: int = 1,
    step_tokens: int = 8192,
    sequences: int = 256,
    usable_share: float = USABLE_SHARE,
    runtime_bytes: float = RUNTIME_BYTES,
) -> Memory:
    """Memory on one GPU.

    Args:
        model: the model.
        costs: of the model in the chosen precisions.
        gpu: the device.
        ranks: GPUs of tensor parallelism.
        step_tokens: token budget of a step.
        sequences: rows of logits.
        usable_share: share of the device's memory that the engine may take.
        runtime_bytes: memory of the runtime, without the model.
    """
    return Memory(
        weights=costs.weight_bytes / ranks,
        kv_per_token=costs.kv_bytes_per_token * kv_share(costs, ranks),
        workspace=workspace_bytes(model, step_tokens, sequences, ranks),
        runtime=runtime_bytes,
        usable=gpu.memory_bytes * usable_share,
    )


def workspace_bytes(model: Model, step_tokens: int, sequences: int, ranks: int = 1) -> float:
    """Live activations of the largest step in 2 bytes, and float32 logits of every sequence.

    Per token: the residual stream, its norm and a layer's result, and the larger of queries with keys and values, and
    gate with up and their product.
    """
    config = model.config
    vectors = config.cached_vectors
    attention = config.num_attention_heads * (vectors.key_dim + vectors.value_dim)
    attention += vectors.num_kv_heads * (vectors.key_dim + vectors.value_dim)
    inner = max(attention, 3 * config.intermediate_size) / ranks
    per_token = 3 * config.hidden_size + inner
    logits = min(sequences, step_tokens) * config.vocab_size * _LOGIT_BYTES / ranks
    return step_tokens * per_token * _ACTIVATION_BYTES + logits


def fitting_sequences(memory: Memory, costs: ModelCosts, ranks: int, context: int) -> int:
    """Number of sequences of a context that fit at once."""
    return max(0, int(memory.for_kv // sequence_bytes(costs, ranks, context)))


def sequence_bytes(costs: ModelCosts, ranks: int, context: int) -> float:
    """KV cache of one sequence on each GPU; layers with a window keep only that."""
    return (costs.memory_bytes(1, context) - costs.weight_bytes) * kv_share(costs, ranks)
