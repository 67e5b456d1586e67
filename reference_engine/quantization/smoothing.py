"""SmoothQuant (Xiao et al., arXiv 2211.10438): scales large activations down, and the weights they multiply up.

X · Wᵀ = (X / s) · (W · s)ᵀ with s[j] = max |X[:, j]|^alpha / max |W[:, j]|^(1 - alpha). Dividing by s costs
nothing if the preceding norm can do it.
"""

from collections.abc import Sequence

import torch


def smoothing_scales(activations: torch.Tensor, weights: Sequence[torch.Tensor], alpha: float = 0.5) -> torch.Tensor:
    """The scales s, to divide activations by and to multiply columns of weights by.

    Args:
        activations: the largest absolute value of each input, [in_features].
        weights: all matrices that multiply these inputs, each [out_features, in_features].
        alpha: how much of the difficulty moves to the weights, 0 to 1.

    Returns:
        float32 [in_features], above zero; 1 for inputs whose activations or weights are all zero.

    Raises:
        ValueError: alpha is out of its range, or the widths differ.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be 0 to 1, not {alpha}")
    if any(weight.shape[1:] != activations.shape for weight in weights):
        raise ValueError(f"not all matrices have the {len(activations)} inputs that the activations have")
    largest = torch.stack([weight.abs().amax(0).float() for weight in weights]).amax(0)
    magnitudes = activations.float()
    scales = magnitudes.pow(alpha) / largest.pow(1 - alpha)
    return torch.where((magnitudes > 0) & (largest > 0), scales, 1.0)
