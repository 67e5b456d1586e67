"""Rotary position embeddings (RoFormer, arXiv 2104.09864) in Hugging Face's half-split layout."""

import math

import torch

from reference_engine.models.config import ModelConfig, RopeScaling


class RotaryTable:
    """cos and signed sin for every position, worked out once.

    With x = [a, b] (halves), rotation is [a·cos - b·sin, b·cos + a·sin] = x·[cos, cos] + [b, a]·[-sin, sin];
    the table stores the two bracketed rows, which is what `Kernels.rotate` takes.
    """

    def __init__(self, config: ModelConfig, max_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        frequencies = _scale(1.0 / config.rope_theta**exponents, config.rope_scaling)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), dim=-1).to(device, dtype)
        self._signed_sin = torch.cat((-sin, sin), dim=-1).to(device, dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and signed sin [num_tokens, 1, head_dim] of int64 positions [num_tokens]."""
        return self._cos[positions][:, None], self._signed_sin[positions][:, None]


def _scale(frequencies: torch.Tensor, scaling: RopeScaling | None) -> torch.Tensor:
    """Frequencies [head_dim / 2] in radians per token, stretched as the checkpoint asks."""
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # llama3: wavelengths below L/high keep their frequency, above L/low they are divided by the factor, between
    # the two the frequency is blended linearly in L/wavelength.
    length = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((length / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies
