"""Where `--batch-invariant` is possible: on devices with Triton, for models that its kernels can compute."""

import torch

from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.kv_cache.layout import CacheLayout


def check_batch_invariance(device: torch.device, layout: CacheLayout) -> None:
    """Refuses devices and models whose results would depend on the batch.

    Args:
        device: where the model is computed.
        layout: of the model's cache.

    Raises:
        ConfigError: a device without Triton, or heads that its kernels do not read.
    """
    if not has_triton(device):
        raise ConfigError(
            "--batch-invariant needs Triton's kernels on a CUDA GPU: all others add in an order that depends on the "
            "batch; use --device cuda or drop it"
        )
    from bakeoff.reference_engine.attention.triton_backend import has_suitable_heads  # noqa: PLC0415 (needs Triton)

    if not has_suitable_heads(layout):
        raise ConfigError(
            "--batch-invariant has no attention kernel for this model's heads: they share one latent, have more than "
            "256 elements or no multiple of 8; drop it"
        )
