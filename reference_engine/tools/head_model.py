"""An EAGLE-3 head as a torch module, trained in the way it drafts (training-time test, arXiv 2503.01840, section 3.2).

`models/eagle.py` computes the same over a paged cache. Parameters have the names used in the head's file.
"""

import torch
from torch import nn
from torch.nn.functional import silu

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.kernels.cpu import TorchKernels
from bakeoff.reference_engine.models.eagle import EagleConfig
from bakeoff.reference_engine.models.rope import RotaryTable

_STD = 0.02  # Transformers' usual initializer_range


class _Attention(nn.Module):
    """Grouped-query attention for chains of drafts, one at each token.

    The chain at a token sees the entries of all tokens up to that one, and of its own drafts.
    """

    def __init__(self, layer: ModelConfig) -> None:
        super().__init__()
        self._heads, self._groups, self._dim = layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim
        inputs = 2 * layer.hidden_size
        self.q_proj = nn.Linear(inputs, self._heads * self._dim, bias=False)
        self.k_proj = nn.Linear(inputs, self._groups * self._dim, bias=False)
        self.v_proj = nn.Linear(inputs, self._groups * self._dim, bias=False)
        self.o_proj = nn.Linear(self._heads * self._dim, layer.hidden_size, bias=False)
        self._rotate = TorchKernels().apply_rope

    def forward(
        self,
        rows: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Computes one place of all chains.

        Args:
            rows: [batch, length, 2 * hidden_size].
            rotation: of the positions of this place, [length, 1, head_dim] each.
            past: keys and values [batch, length, heads, head_dim] of the earlier places; this one's are appended.

        Returns:
            [batch, length, hidden_size].
        """
        batch, length, _ = rows.shape
        query = self._rotate(self.q_proj(rows).view(batch, length, self._heads, self._dim), *rotation)
        key = self._rotate(self.k_proj(rows).view(batch, length, self._groups, self._dim), *rotation)
        value = self.v_proj(rows).view(batch, length, self._groups, self._dim)
        repeats = self._heads // self._groups
        past.append((key.repeat_interleave(repeats, dim=2), value.repeat_interleave(repeats, dim=2)))
        (keys, values), guesses = past[0], past[1:]
        scores = torch.einsum("bihd,bjhd->bhij", query, keys)
        is_later = torch.ones(length, length, dtype=torch.bool, device=rows.device).triu(1)
        scores = scores.masked_fill(is_later, -torch.inf)
        own = [(query * guess).sum(-1).transpose(1, 2)[..., None] for guess, _ in guesses]
        weights = (torch.cat([scores, *own], dim=-1).float() * self._dim**-0.5).softmax(-1).to(value.dtype)
        mixed = torch.einsum("bhij,bjhd->bihd", weights[..., :length], values)
        for place, (_, guess) in enumerate(guesses):
            mixed = mixed + weights[..., length + place].transpose(1, 2)[..., None] * guess
        return self.o_proj(mixed.flatten(2))


class _Mlp(nn.Module):
    def __init__(self, layer: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(layer.hidden_size, layer.intermediate_size, bias=False)
        self.up_proj = nn.Linear(layer.hidden_size, layer.intermediate_size, bias=False)
        self.down_proj = nn.Linear(layer.intermediate_size, layer.hidden_size, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down_proj(silu(self.gate_proj(rows)) * self.up_proj(rows))


class _Layer(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        layer = config.layer
        self._is_normed_first = config.norm_before_residual
        self.input_layernorm = nn.RMSNorm(layer.hidden_size, layer.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(layer.hidden_size, layer.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(layer.hidden_size, layer.rms_norm_eps)
        self.self_attn, self.mlp = _Attention(layer), _Mlp(layer)

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self._is_normed_first else hidden
        rows = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        residual = residual + self.self_attn(rows, rotation, past).float()
        return residual + self.mlp(self.post_attention_layernorm(residual)).float()


class TrainableHead(nn.Module):
    """The head; new weights are normal, norms 1.

    Args:
        config: config of the head, with known depths.
        seed: for the weights.
    """

    def __init__(self, config: EagleConfig, seed: int) -> None:
        super().__init__()
        hidden, num_taps = config.layer.hidden_size, len(config.taps or ())
        self._layer_config = config.layer
        self.fc: nn.Linear = nn.Linear(num_taps * hidden, hidden, bias=False)
        self.layers: nn.ModuleList = nn.ModuleList([_Layer(config)])
        self.norm: nn.RMSNorm = nn.RMSNorm(hidden, config.layer.rms_norm_eps)
        self.lm_head: nn.Linear = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for _, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=_STD, generator=generator)

    @property
    def device(self) -> torch.device:
        """Its device."""
        return self.fc.weight.device

    def forward(self, states: torch.Tensor, embedded: torch.Tensor, places: int) -> list[torch.Tensor]:
        """Drafts from each token; chains continue with the text's own tokens but the head's own outputs.

        Args:
            states: hidden states of the model at each token, [batch, length, taps * hidden_size].
            embedded: embeddings of the tokens, [batch, length, hidden_size].
            places: length of the chains.

        Returns:
            For each place k from 0, normed outputs [batch, length, hidden_size], for `lm_head` to turn into logits.
            Output i predicts token i + k + 2; the last k + 1 outputs of a sequence continue from missing tokens.
        """
        length = embedded.shape[1]
        layer = self._layer_config
        table = RotaryTable(
            layer.head_dim,
            layer.rope_theta,
            layer.rope_scaling,
            max_positions=length + places,
            dtype=torch.float32,
            device=self.device,
        )
        hidden = self.fc(states).float()
        past: list[tuple[torch.Tensor, torch.Tensor]] = []
        outputs: list[torch.Tensor] = []
        for place in range(places):
            embedded = torch.cat((embedded[:, 1:], torch.zeros_like(embedded[:, :1])), dim=1)
            positions = torch.arange(place, place + length, device=self.device)
            hidden = self.layers[0](embedded.float(), hidden, table.at(positions), past)
            outputs.append(self.norm(hidden))
        return outputs
