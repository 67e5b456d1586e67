"""The Llama decoder (arXiv 2302.13971; GQA from Llama 2, arXiv 2307.09288) over a flat, unpadded batch of tokens.

It knows shapes and weights only; which tokens belong together is the attention step's business, which tokens come
next the engine's. RMSNorm: arXiv 1910.07467. SwiGLU: arXiv 2002.05202.
"""

import torch
from torch.nn.functional import embedding

from reference_engine.attention.base import AttentionStep
from reference_engine.kernels.cpu import Kernels, best_kernels
from reference_engine.loading.checkpoint import WeightSource
from reference_engine.models.config import ModelConfig
from reference_engine.models.linear import make_linear
from reference_engine.models.rope import RotaryTable


class _Weights:
    """Reads tensors in the wanted dtype on the wanted device, fused along the output dimension."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str) -> torch.Tensor:
        # A copy: a view of the mapped file would keep the whole file mapped, and resident beside the packed weights.
        return self._source.get(name).to(self._device, self._dtype, copy=True)

    def fused(self, prefix: str, parts: tuple[str, ...], kind: str) -> torch.Tensor:
        tensors = [self._source.get(f"{prefix}{part}.{kind}").to(self._device, self._dtype) for part in parts]
        return torch.cat(tensors)


class LlamaLayer:
    """One decoder layer: x += attention(norm(x)); x += mlp(norm(x)). The last sum is left to the next layer's norm."""

    def __init__(self, config: ModelConfig, index: int, weights: _Weights, kernels: Kernels) -> None:
        prefix = f"model.layers.{index}."
        self._index = index
        self._config = config
        self._kernels = kernels
        self._eps = config.rms_norm_eps
        self._input_norm = weights.tensor(f"{prefix}input_layernorm.weight")
        self._mlp_norm = weights.tensor(f"{prefix}post_attention_layernorm.weight")

        def matrix(parent: str, parts: tuple[str, ...], *, has_bias: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
            bias = weights.fused(prefix + parent, parts, "bias") if has_bias else None
            return weights.fused(prefix + parent, parts, "weight"), bias

        self._qkv = make_linear(*matrix("self_attn.", ("q_proj", "k_proj", "v_proj"), has_bias=config.attention_bias))
        self._out = make_linear(*matrix("self_attn.", ("o_proj",), has_bias=config.attention_bias))
        self._gate_up = make_linear(*matrix("mlp.", ("gate_proj", "up_proj"), has_bias=config.mlp_bias))
        self._down = make_linear(*matrix("mlp.", ("down_proj",), has_bias=config.mlp_bias))

    def __call__(
        self,
        residual: torch.Tensor,
        added: torch.Tensor | None,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionStep,
    ) -> torch.Tensor:
        """One step of the residual stream.

        Args:
            residual: [num_tokens, hidden_size]; changed in place.
            added: the same, what the layer before adds to it; None for nothing.
            rotation: of the tokens' positions.
            attention: prepared for the same tokens.

        Returns:
            What this layer adds, [num_tokens, hidden_size].
        """
        norm = self._kernels.add_rms_norm
        attended = self._attend(norm(residual, added, self._input_norm, self._eps), rotation, attention)
        gate_up = self._gate_up(norm(residual, attended, self._mlp_norm, self._eps))
        return self._down(self._kernels.silu_mul(gate_up))

    def _attend(
        self, normed: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], attention: AttentionStep
    ) -> torch.Tensor:
        queries, keys = self._config.num_attention_heads, self._config.num_key_value_heads
        heads = self._qkv(normed).view(normed.shape[0], queries + 2 * keys, self._config.head_dim)
        # Queries and keys turn together: one rotation of q+k heads costs as many calls as one of q heads.
        rotated = self._kernels.rotate(heads[:, : queries + keys], *rotation)
        attended = attention.attend(self._index, rotated[:, :queries], rotated[:, queries:], heads[:, queries + keys :])
        return self._out(attended)


class LlamaModel:
    """The whole decoder.

    Args:
        config: shapes and constants.
        source: the weights under Hugging Face's names.
        max_positions: tokens; the longest sequence that will be computed.
        dtype: of weights and activations.
        device: where it runs.

    Raises:
        CheckpointError: a tensor is missing.
    """

    def __init__(
        self, config: ModelConfig, source: WeightSource, *, max_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        weights = _Weights(source, dtype, device)
        self._config = config
        self._embedding = weights.tensor("model.embed_tokens.weight")
        self._kernels = best_kernels(device, dtype)
        self._layers = [LlamaLayer(config, i, weights, self._kernels) for i in range(config.num_hidden_layers)]
        self._norm = weights.tensor("model.norm.weight")
        head = self._embedding if config.tie_word_embeddings else weights.tensor("lm_head.weight")
        self._head = make_linear(head)
        self._rotary = RotaryTable(config, max_positions, dtype, device)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionStep, wanted_rows: torch.Tensor
    ) -> torch.Tensor:
        """One step.

        Args:
            token_ids: int64 [num_tokens].
            positions: int64 [num_tokens], each token's place in its own sequence.
            attention: prepared for the same tokens.
            wanted_rows: int64 [num_wanted], the tokens whose successor is wanted.

        Returns:
            Logits [num_wanted, vocab_size].
        """
        residual, added = embedding(token_ids, self._embedding), None
        rotation = self._rotary.at(positions)
        for layer in self._layers:
            added = layer(residual, added, rotation, attention)
        wanted = None if added is None else added.index_select(0, wanted_rows)
        residual = residual.index_select(0, wanted_rows)
        return self._head(self._kernels.add_rms_norm(residual, wanted, self._norm, self._config.rms_norm_eps))
