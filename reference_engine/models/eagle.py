"""The EAGLE-3 draft head (Li et al., arXiv 2503.01840), in the layout of the speculators project (Red Hat).

One Llama layer predicts token i+2 from token i+1 and from the hidden states that the model had at token i, taken at
several depths and reduced to one vector by `fc`. Its queries, keys and values see embedding and vector side by side.
At positions that the model has not computed yet, the layer's own output takes the place of that vector.

A directory holds config.json and model.safetensors: `fc.weight`, `layers.0.*` with a `hidden_norm` besides Llama's two
norms, `norm.weight`, `lm_head.weight`, and `embed_tokens.weight` unless it is the model's. `lm_head` may have rows for
some tokens only: row i stands for token i + `d2t[i]`, and `t2d` states for each token whether it has one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bakeoff.reference_engine.attention.base import AttentionStep
from bakeoff.reference_engine.core.model_config import ModelConfig, check_options
from bakeoff.reference_engine.errors import CheckpointError, EngineBugError
from bakeoff.reference_engine.models.config_readers import read_llama
from bakeoff.reference_engine.models.decoder import Rotations, rotary_table
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.linear import Matrix, rows_of
from bakeoff.reference_engine.models.mlp import GatedMlp
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix

SPECULATORS_TYPE = "eagle3"
_FEWEST_LAYERS = 7  # of a model whose usual three depths differ
_LAYER_DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "rms_norm_eps": 1e-6,
}  # fmt: skip
"""Of Transformers' LlamaConfig: the speculators project leaves them out of transformer_layer_config."""


@dataclasses.dataclass(frozen=True, slots=True)
class EagleConfig:
    """Shapes and constants of a head.

    Attributes:
        layer: config of its layer; the vocabulary is the model's.
        draft_vocab_size: number of tokens that it can propose.
        taps: depths of the model's hidden states, see `decoder.Taps`; None for `default_taps` of the model.
        norm_before_residual: whether the residual stream begins with the normed vector instead of the plain one.
    """

    layer: ModelConfig
    draft_vocab_size: int
    taps: tuple[int, ...] | None
    norm_before_residual: bool


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Depths for a model with so many layers: vLLM's, or in a shallow model its ends and its middle."""
    if num_layers >= _FEWEST_LAYERS:
        return 2, num_layers // 2, num_layers - 3
    return tuple(sorted({0, num_layers // 2, num_layers}))


def read_config(raw: Mapping[str, Any], where: str) -> EagleConfig:
    """Reads a decoded config.json.

    Args:
        raw: the object.
        where: its path, for messages.

    Raises:
        CheckpointError: it describes something else, has an unsupported option, or a field is damaged.
    """
    if raw.get("speculators_model_type") != SPECULATORS_TYPE:
        raise CheckpointError(
            f"{where}: speculators_model_type is {raw.get('speculators_model_type')!r}, not {SPECULATORS_TYPE!r}; give "
            "the folder of an EAGLE-3 head, such as bakeoff models eagle writes"
        )
    check_options(raw, where, norm_before_fc=(False, None), fc_norm=(False, None), norm_output=(False, None))
    try:
        layer = {**_LAYER_DEFAULTS, **raw["transformer_layer_config"]}
        check_options(layer, where, model_type=("llama",), partial_rotary_factor=(None, 1.0))
        check_options(layer, where, num_hidden_layers=(1,))
        taps = raw.get("eagle_aux_hidden_state_layer_ids")
        config = read_llama(layer, where)
        return EagleConfig(
            config,
            int(raw.get("draft_vocab_size") or config.vocab_size),
            None if not taps else tuple(map(int, taps)),
            bool(raw.get("norm_before_residual", True)),
        )
    except KeyError as error:
        raise CheckpointError(f"{where}: the field {error} is missing; fetch the head again") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: a field is not of its type ({error}); fetch the head again") from error


def head_shapes(config: EagleConfig, num_taps: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that a head must have, by name; matrices are [out_features, in_features]."""
    layer = config.layer
    hidden, queries = layer.hidden_size, layer.num_attention_heads * layer.head_dim
    keys = layer.num_key_value_heads * layer.head_dim
    shapes = {
        "fc.weight": (hidden, num_taps * hidden),
        "layers.0.hidden_norm.weight": (hidden,),
        "layers.0.input_layernorm.weight": (hidden,),
        "layers.0.post_attention_layernorm.weight": (hidden,),
        "layers.0.self_attn.q_proj.weight": (queries, 2 * hidden),
        "layers.0.self_attn.k_proj.weight": (keys, 2 * hidden),
        "layers.0.self_attn.v_proj.weight": (keys, 2 * hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, queries),
        "layers.0.mlp.gate_proj.weight": (layer.intermediate_size, hidden),
        "layers.0.mlp.up_proj.weight": (layer.intermediate_size, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, layer.intermediate_size),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
    }
    if config.draft_vocab_size < layer.vocab_size:
        shapes["d2t"] = (config.draft_vocab_size,)
    return shapes


def check_shapes(source: WeightSource, config: EagleConfig, num_taps: int, where: str) -> None:
    """Compares the tensors of a head with its config.

    Raises:
        CheckpointError: one is missing or has another shape.
    """
    expected = head_shapes(config, num_taps)
    if "embed_tokens.weight" in source.names():
        expected["embed_tokens.weight"] = (config.layer.vocab_size, config.layer.hidden_size)
    for name, shape in expected.items():
        actual = tuple(source.get(name).shape)
        if actual != shape:
            raise CheckpointError(
                f"{where}: {name} is {list(actual)}, where config.json and the model imply {list(shape)}; fetch the "
                "head again, or give the one that was made for this model"
            )


def draft_tokens(source: WeightSource, config: EagleConfig, where: str) -> torch.Tensor | None:
    """The token of each row of a head's logits, int64 [draft_vocab_size]; None if they are all tokens, in order.

    Raises:
        CheckpointError: the maps contain an invalid token, or one twice.
    """
    vocab_size = config.layer.vocab_size
    if config.draft_vocab_size == vocab_size:
        return None
    tokens = source.get("d2t").long() + torch.arange(config.draft_vocab_size)
    is_right = config.draft_vocab_size < vocab_size and bool(((tokens >= 0) & (tokens < vocab_size)).all())
    is_right = is_right and len(tokens.unique()) == len(tokens)
    if is_right and "t2d" in source.names():
        is_drafted = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, tokens, value=True)
        is_right = torch.equal(source.get("t2d").bool(), is_drafted)
    if not is_right:
        raise CheckpointError(
            f"{where}: d2t and t2d do not choose {config.draft_vocab_size} of the {vocab_size} tokens; fetch the head "
            "again"
        )
    return tokens


class HeadSource:
    """A head's tensors under the names that Llama's layers use; a `WeightSource`.

    Args:
        source: of the head's directory.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    def names(self) -> Sequence[str]:
        return self._source.names()

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        return self._source.get(name.removeprefix("model."), dtype, device)

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        return self._source.get_quantised(name.removeprefix("model."))


class EagleHead:
    """The head on its device.

    Args:
        config: shapes and constants.
        weights: over a `HeadSource`.
        tokens: see `draft_tokens`.
        max_positions: maximum sequence length in tokens.
        has_embedding: whether the weights include an embedding.

    Attributes:
        embedding: [vocab_size, hidden_size]; None until the model's is assigned, if the head has none of its own.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: Weights,
        tokens: torch.Tensor | None,
        max_positions: int,
        *,
        has_embedding: bool,
    ) -> None:
        layer, prefix = config.layer, layer_prefix(0)
        self.embedding: Matrix | None = weights.matrix("model.embed_tokens.weight") if has_embedding else None
        self.hidden_size, self._vocab_size = layer.hidden_size, layer.vocab_size
        self.dtype, self.device = weights.dtype, weights.device
        self._add_norm, self._eps = weights.kernels.add_rms_norm, layer.rms_norm_eps
        self._is_normed_first = config.norm_before_residual
        self._input_norm = weights.norm(f"{prefix}input_layernorm")
        self._hidden_norm = weights.norm(f"{prefix}hidden_norm")
        self._mlp_norm = weights.norm(f"{prefix}post_attention_layernorm")
        self._norm = weights.norm("model.norm")
        self._fc = weights.linear("model.", ("fc",))
        self._mixer = GroupedQueryAttention(layer, 0, weights)
        self._mlp = GatedMlp(weights, f"{prefix}mlp.", has_bias=layer.mlp_bias)
        self._rotary = rotary_table(layer, weights, max_positions)
        self._head = weights.head(None)
        self._tokens = None if tokens is None else tokens.to(weights.device)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Reduces hidden states [num_tokens, taps * hidden_size] to one vector each, [num_tokens, hidden_size]."""
        return self._fc(states)

    def forward(
        self,
        token_ids: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionStep,
        wanted_rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step.

        Args:
            token_ids: int64 [num_tokens].
            hidden: [num_tokens, hidden_size], contiguous: `fuse` of the token before each, or this head's output there.
            positions: int64 [num_tokens], of those tokens before.
            attention: over the head's own cache, prepared for the same positions.
            wanted_rows: int64 [num_wanted]; None for all.

        Returns:
            Logits [num_wanted, vocab_size], -inf for tokens that the head cannot propose, and its outputs [num_wanted,
            hidden_size].
        """
        if self.embedding is None:
            raise EngineBugError("a draft head computes before it has the model's embedding")
        norm, eps = self._add_norm, self._eps
        embedded = norm(rows_of(self.embedding, token_ids), None, self._input_norm, eps)
        normed = norm(hidden, None, self._hidden_norm, eps)
        residual = normed if self._is_normed_first else hidden.clone()
        mixed = self._mixer(torch.cat((embedded, normed), dim=-1), Rotations([self._rotary.at(positions)]), attention)
        fed = self._mlp(norm(residual, mixed, self._mlp_norm, eps))
        if wanted_rows is not None:
            residual, fed = residual.index_select(0, wanted_rows), fed.index_select(0, wanted_rows)
        logits = self._head(norm(residual, fed, self._norm, eps))
        if self._tokens is None:
            return logits, residual
        whole = logits.new_full((len(logits), self._vocab_size), -torch.inf)
        return whole.index_copy_(1, self._tokens, logits), residual
