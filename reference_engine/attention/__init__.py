"""One attention interface over the paged cache: compiled, in stock torch, for part of the tokens, and a naive twin."""

from reference_engine.attention.base import AttentionBackend
from reference_engine.attention.heavy_hitter import Budget, HeavyHitterAttention
from reference_engine.attention.native_backend import NativeAttention, suits_native
from reference_engine.attention.torch_backend import TorchAttention
from reference_engine.kernels.cpu import native_kernels
from reference_engine.kv_cache.storage import KvStorage


def make_attention(storage: KvStorage, budget: Budget | None = None) -> AttentionBackend:
    """The fastest backend for this storage on this machine.

    Args:
        storage: what it works on.
        budget: what to keep of each sequence, in stores that `scored` made; None keeps everything.
    """
    if budget is not None:
        return HeavyHitterAttention(storage, budget)
    kernels = native_kernels(storage.device, storage.dtype)
    if kernels is not None and suits_native(storage):
        return NativeAttention(storage, kernels)
    return TorchAttention(storage)
