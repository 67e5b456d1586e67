"""Rotary position embeddings (RoFormer, arXiv 2104.09864) in Hugging Face's half-split layout."""

import math

import torch
from torch.nn.functional import pad

from bakeoff.reference_engine.core.model_config import RopeScaling


class RotaryTable:
    """Precomputed cos and signed sin of every position.

    With x = [a, b] (halves), rotation is [a·cos - b·sin, b·cos + a·sin] = x·[cos, cos] + [b, a]·[-sin, sin];
    the table stores the two bracketed rows, which `Kernels.apply_rope` takes.

    Args:
        dim: elements of a vector.
        theta: base of the frequencies.
        scaling: of the frequencies; None for none.
        max_positions: number of positions; the frequencies of some scalings depend on it.
        dtype: of the vectors.
        device: of the vectors.
        rotary_dim: elements of a vector that are rotated, in the layout of `partly_rotated`; None for all.
    """

    def __init__(
        self,
        dim: int,
        theta: float,
        scaling: RopeScaling | None,
        *,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        rotary_dim: int | None = None,
    ) -> None:
        frequencies = scaled_frequencies(rotary_dim or dim, theta, scaling, max_positions)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        length = 1.0 if scaling is None else scaling.attention_factor
        still = dim // 2 - len(frequencies)  # pairs that keep their direction and length
        cos, sin = pad(angles.cos() * length, (0, still), value=1.0), pad(angles.sin() * length, (0, still))
        self._cos = torch.cat((cos, cos), dim=-1).to(device, dtype)
        self._signed_sin = torch.cat((-sin, sin), dim=-1).to(device, dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and signed sin [num_tokens, 1, dim] of int64 positions [num_tokens]."""
        return self._cos[positions][:, None], self._signed_sin[positions][:, None]


def frequency_divisors(dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """The number by which a scaling divides each frequency, [dim / 2]."""
    scaled = scaled_frequencies(dim, theta, scaling, scaling.original_max_position_embeddings)
    return _frequencies(dim, theta) / scaled


def halves_from_pairs(rows: torch.Tensor) -> torch.Tensor:
    """Reorders weights [..., dim, in_features] from interleaved pairs to the half-split layout.

    Attention scores do not change if queries and keys are reordered alike.
    """
    return torch.cat((rows[..., 0::2, :], rows[..., 1::2, :]), dim=-2)


def partly_rotated(dim: int, rotary_dim: int) -> torch.Tensor:
    """The order in which a head's elements form pairs (i, i + dim / 2), those that are rotated first.

    Checkpoints rotate the first `rotary_dim` elements, in pairs (i, i + rotary_dim / 2), and leave the others alone.
    Attention scores do not change if queries and keys are reordered alike.

    Returns:
        int64 [dim], places in a stored head.
    """
    places, half, still = torch.arange(dim), rotary_dim // 2, (dim - rotary_dim) // 2
    first, second, left, right = places.split([half, half, still, dim - rotary_dim - still])
    return torch.cat((first, left, second, right))


def _frequencies(dim: int, theta: float) -> torch.Tensor:
    """[dim / 2] in radians per token."""
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def scaled_frequencies(dim: int, theta: float, scaling: RopeScaling | None, max_positions: int) -> torch.Tensor:
    """Frequencies of all positions, [dim / 2] in radians per token.

    Args:
        dim: elements of a rotated vector.
        theta: base of the frequencies.
        scaling: of the frequencies; None for none.
        max_positions: maximum sequence length in tokens. `dynamic` computes the base for it, and `longrope` takes the
            long factors if it is above the trained length.
    """
    if scaling is None:
        return _frequencies(dim, theta)
    trained = scaling.original_max_position_embeddings
    if scaling.kind == "dynamic":
        stretch = scaling.factor * max(max_positions, trained) / trained - (scaling.factor - 1)
        return _frequencies(dim, theta * stretch ** (dim / (dim - 2)))
    frequencies = _frequencies(dim, theta)
    if scaling.kind == "longrope":
        factors = scaling.long_factor if max_positions > trained else scaling.short_factor
        return frequencies / torch.tensor(factors, dtype=torch.float32)
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    keep = _kept_llama3(frequencies, scaling) if scaling.kind == "llama3" else _kept_yarn(frequencies, theta, scaling)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def _kept_llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Kept shares [dim / 2]: 1 for wavelengths below L/high, 0 above L/low, between them linear in L/wavelength."""
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((scaling.original_max_position_embeddings / wavelengths - low) / (high - low)).clamp(0.0, 1.0)


def _kept_yarn(frequencies: torch.Tensor, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Kept shares [dim / 2]: 1 for dimensions with more than beta_fast turns in the trained length, 0 below beta_slow.

    Between them linear in the index of the dimension (arXiv 2309.00071, section 3.2, and its released code).
    """
    dim = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001
    return 1 - ((torch.arange(dim // 2, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
