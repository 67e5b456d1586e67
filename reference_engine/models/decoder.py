"""Common parts of the decoder families: embedding, layers, norm and head over a flat, unpadded batch of tokens.

A decoder knows only shapes and weights: the attention step knows which tokens belong together, the engine which tokens
come next. RMSNorm: arXiv 1910.07467.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from bakeoff.reference_engine.attention.base import AttentionStep
from bakeoff.reference_engine.core.model_config import ModelConfig, RopeScaling
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.kernels.scoring import capped
from bakeoff.reference_engine.models.linear import Matrix, rows_of
from bakeoff.reference_engine.models.mlp import FeedForward
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.rope import RotaryTable
from bakeoff.reference_engine.models.sharding import layers_of_stage
from bakeoff.reference_engine.models.weights import Weights

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cos and signed sin of the tokens' positions (`RotaryTable.at`)."""
Hidden = tuple[torch.Tensor, torch.Tensor | None]
"""Residual stream after the last layer [num_tokens, hidden_size], and that layer's result, not yet added to it."""
Inputs = torch.Tensor
"""Token ids, int64 [num_tokens]; behind the first stage of a pipeline the rows [num_tokens, hidden_size] before it."""


class Rotations(NamedTuple):
    """The rotations of a step's tokens.

    Attributes:
        own: for each of the model's tables that of the tokens' positions.
        towards_sinks: the same for the positions from which the tokens look at sinks; () if these are their own.
    """

    own: Sequence[Rotation]
    towards_sinks: Sequence[Rotation] = ()


class Model(Protocol):
    """A decoder of any family."""

    @property
    def may_capture(self) -> bool:
        """Whether the products with its weights can be part of a CUDA graph; see `QuantisedMatrix.may_capture`."""
        ...

    def forward(
        self,
        inputs: Inputs,
        positions: torch.Tensor,
        attention: AttentionStep,
        wanted_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One step.

        Args:
            inputs: changed in place if they are rows.
            positions: int64 [num_tokens], of each token in its sequence.
            attention: prepared for the same tokens.
            wanted_rows: int64 [num_wanted], the tokens to compute logits for; None for all.

        Returns:
            Logits [num_wanted, vocab_size], in float32 where `make_head` can; on ranks other than 0, which do not
            sample, a shard; in stages before the last the rows of all tokens for the next one.
        """
        ...

    def rows(self, count: int) -> torch.Tensor:
        """Room for the rows of a stage before this one, [count, hidden_size], zeros."""
        ...

    def hidden(self, inputs: Inputs, positions: torch.Tensor, attention: AttentionStep) -> Hidden:
        """The layers of `forward`, without norm and head; same arguments."""
        ...

    def logits(self, hidden: Hidden, wanted_rows: torch.Tensor | None = None) -> torch.Tensor:
        """Norm and head of `forward`.

        Args:
            hidden: from `hidden`. If all rows are wanted it is modified, and cannot be used again.
            wanted_rows: see `forward`.

        Returns:
            See `forward`.
        """
        ...

    def first_layers(self, count: int) -> "Model":
        """A model of the first layers of this one, with its norm and head; shares all weights."""
        ...

    def tapped(self, taps: "Taps") -> "Model":
        """This model, storing hidden states of each step in `taps`; shares all weights."""
        ...

    @property
    def taps(self) -> "Taps | None":
        """Where hidden states are stored; None if they are not."""
        ...

    @property
    def embedding(self) -> Matrix:
        """[vocab_size, hidden_size], of input tokens, without a family's factor."""
        ...


class Taps:
    """Hidden states between the layers of a model, as a draft head reads them (EAGLE-3, arXiv 2503.01840).

    Args:
        layers: positions in the residual stream: i is before layer i, the number of layers is after the last one.

    Attributes:
        layers: the same.
        rows: [num_tokens, len(layers) * hidden_size] of the latest step, valid until the next; None before the first.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers: tuple[int, ...] = tuple(layers)
        self.rows: torch.Tensor | None = None


class Mixer(Protocol):
    """The attention of a layer."""

    def __call__(self, normed: torch.Tensor, rotations: Rotations, attention: AttentionStep) -> torch.Tensor:
        """Rows [num_tokens, hidden_size] -> this rank's partial result of that shape; see `Ranks`."""
        ...


class Layer(Protocol):
    """One decoder layer."""

    def __call__(
        self, residual: torch.Tensor, added: torch.Tensor | None, rotations: Rotations, attention: AttentionStep
    ) -> torch.Tensor:
        """One step of the residual stream. The next layer's norm adds this layer's result.

        Args:
            residual: [num_tokens, hidden_size]; changed in place.
            added: [num_tokens, hidden_size], result of the previous layer; None in the first layer.
            rotations: of the tokens' positions.
            attention: prepared for the same tokens.

        Returns:
            This layer's result, [num_tokens, hidden_size].
        """
        ...


class PreNormLayer:
    """x += mixer(norm(x)); x += mlp(norm(x)); a `Layer`."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights, mixer: Mixer, mlp: FeedForward) -> None:
        self._eps = config.rms_norm_eps
        norm = weights.kernels.add_rms_norm
        self._norm_mixer, self._norm_mlp = getattr(mixer, "norm", norm), getattr(mlp, "norm", norm)
        self._input_norm = weights.norm(f"{layer_prefix(index)}input_layernorm")
        self._mlp_norm = weights.norm(f"{layer_prefix(index)}post_attention_layernorm")
        self._mixer, self._mlp, self._sum = mixer, mlp, weights.ranks.sum

    def __call__(
        self, residual: torch.Tensor, added: torch.Tensor | None, rotations: Rotations, attention: AttentionStep
    ) -> torch.Tensor:
        normed = self._norm_mixer(residual, added, self._input_norm, self._eps)
        mixed = self._sum(self._mixer(normed, rotations, attention))
        return self._sum(self._mlp(self._norm_mlp(residual, mixed, self._mlp_norm, self._eps)))


class Decoder:
    """A `Model` composed of layers.

    Args:
        config: shapes and constants.
        weights: of the model.
        layers: in order.
        rotaries: rotary tables of the layers.
        embedding_scale: factor on embeddings.
        logit_cap: bound of logits, see `Scoring.soft_cap`; None for none.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        layers: Sequence[Layer],
        rotaries: Sequence[RotaryTable],
        *,
        embedding_scale: float = 1.0,
        logit_cap: float | None = None,
    ) -> None:
        self._layers, self._rotaries, self._stage = layers, rotaries, weights.ranks.stage
        self._rows = torch.zeros(config.hidden_size, dtype=weights.dtype, device=weights.device)
        is_tied = config.tie_word_embeddings and self._stage.is_last
        self._embedding = weights.matrix("model.embed_tokens.weight") if self._stage.is_first or is_tied else None
        self.taps: Taps | None = None
        # The factor is rounded to the dtype of the weights, as in Transformers.
        scale = torch.tensor(embedding_scale, dtype=weights.dtype, device=weights.device)
        self._scale = None if embedding_scale == 1.0 else scale
        self._logit_cap = logit_cap
        self._add_norm, self._eps = weights.kernels.add_rms_norm, config.rms_norm_eps
        self._norm = weights.norm("model.norm")
        self._head = weights.head(self._embedding if is_tied else None) if self._stage.is_last else None
        self._gather, self._vocab_size = (
            weights.ranks.gather,
            config.vocab_size if self._embedding is None else self._embedding.shape[0],
        )
        self._may_capture, self._offload = weights.may_capture, weights.offload
        self._sinks_seen_from = weights.sinks_seen_from

    @property
    def may_capture(self) -> bool:
        return self._may_capture

    @property
    def embedding(self) -> Matrix:
        if self._embedding is None:
            raise EngineBugError("this stage of the pipeline embeds no tokens")
        return self._embedding

    def rows(self, count: int) -> torch.Tensor:
        return self._rows.repeat(count, 1)

    def forward(
        self,
        inputs: Inputs,
        positions: torch.Tensor,
        attention: AttentionStep,
        wanted_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        hidden = self.hidden(inputs, positions, attention)
        return self.logits(hidden, wanted_rows) if self._stage.is_last else total(hidden)

    def hidden(self, inputs: Inputs, positions: torch.Tensor, attention: AttentionStep) -> Hidden:
        if self._offload is None:
            return self._through_layers(inputs, positions, attention)
        self._offload.begin()
        hidden = self._through_layers(inputs, positions, attention)
        self._offload.end()
        return hidden

    def _through_layers(self, inputs: Inputs, positions: torch.Tensor, attention: AttentionStep) -> Hidden:
        residual = rows_of(self.embedding, inputs) if self._stage.is_first else inputs
        if self._scale is not None and self._stage.is_first:
            residual.mul_(self._scale)
        rotations = self._rotations(positions)
        if self.taps is not None:
            return residual, self._tapping(self.taps, residual, rotations, attention)
        added = None
        for layer in self._layers:
            added = layer(residual, added, rotations, attention)
        return residual, added

    def _rotations(self, positions: torch.Tensor) -> Rotations:
        own = [table.at(positions) for table in self._rotaries]
        if self._sinks_seen_from is None:
            return Rotations(own)
        places = positions.clamp(max=self._sinks_seen_from)
        return Rotations(own, [table.at(places) for table in self._rotaries])

    def logits(self, hidden: Hidden, wanted_rows: torch.Tensor | None = None) -> torch.Tensor:
        if self._head is None:
            raise EngineBugError("this stage of the pipeline has no head")
        residual, added = hidden
        if wanted_rows is not None:
            added = None if added is None else added.index_select(0, wanted_rows)
            residual = residual.index_select(0, wanted_rows)
        logits = self._gather(self._head(self._add_norm(residual, added, self._norm, self._eps)), self._vocab_size)
        return logits if self._logit_cap is None else capped(logits, self._logit_cap)

    def first_layers(self, count: int) -> "Decoder":
        model = copy.copy(self)
        model._layers = self._layers[:count]  # noqa: SLF001 (of the same class)
        return model

    def tapped(self, taps: Taps) -> "Decoder":
        model = copy.copy(self)
        model.taps = taps
        return model

    def _tapping(
        self, taps: Taps, residual: torch.Tensor, rotations: Rotations, attention: AttentionStep
    ) -> torch.Tensor | None:
        """Runs all layers, as in `hidden`; layers change the residual in place, so the stored states are copies."""
        added: torch.Tensor | None = None
        states: dict[int, torch.Tensor] = {}
        for index, layer in enumerate((*self._layers, None)):
            if index in taps.layers:
                states[index] = residual.clone() if added is None else residual + added
            if layer is not None:
                added = layer(residual, added, rotations, attention)
        taps.rows = torch.cat([states[index] for index in taps.layers], dim=-1)
        return added


def total(hidden: Hidden) -> torch.Tensor:
    """The residual stream that the next layer's norm would see, in the bits that it would compute; a copy."""
    residual, added = hidden
    return residual.clone() if added is None else residual + added


def rotary_table(config: ModelConfig, weights: Weights, max_positions: int) -> RotaryTable:
    """The rotary table of a model whose layers share one."""
    return table_of(config, config.rope_theta, config.rope_scaling, weights, max_positions)


def table_of(
    config: ModelConfig, theta: float, scaling: RopeScaling | None, weights: Weights, max_positions: int
) -> RotaryTable:
    """A rotary table for the model's heads, with the device and dtype of the weights."""
    return RotaryTable(
        config.head_dim,
        theta,
        scaling,
        max_positions=max_positions,
        dtype=weights.dtype,
        device=weights.device,
        rotary_dim=config.rotary_dim,
    )


def pre_norm_decoder(
    config: ModelConfig,
    weights: Weights,
    max_positions: int,
    *,
    mixer: Callable[[int], Mixer],
    mlp: Callable[[int], FeedForward],
) -> Decoder:
    """A decoder of `PreNormLayer`; `mixer` and `mlp` build the two halves of the layer with a given index."""
    layers = [PreNormLayer(config, i, weights, mixer(i), mlp(i)) for i in layers_of_stage(config, weights.ranks.stage)]
    return Decoder(config, weights, layers, [rotary_table(config, weights, max_positions)])
