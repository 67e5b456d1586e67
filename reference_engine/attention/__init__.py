"""One attention interface over the paged cache: compiled backends for CPU and GPU, and one in stock torch."""

from bakeoff.reference_engine.attention.base import AttentionBackend
from bakeoff.reference_engine.attention.native_backend import NativeAttention, suits_native
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.kernels.cpu import native_kernels
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.kv_cache.storage import KvStorage


def make_attention(storage: KvStorage, *, batch_invariant: bool = False) -> AttentionBackend:
    """The fastest backend for this storage on this machine.

    Args:
        storage: the cache.
        batch_invariant: whether a token's bits must depend only on the tokens that it sees; requires a storage that
            `suits_triton` accepts, where `has_triton` is true.
    """
    if has_triton(storage.device):
        from bakeoff.reference_engine.attention.triton_backend import (  # noqa: PLC0415 (torch for the CPU comes without Triton)
            TritonAttention,
            suits_triton,
        )

        if suits_triton(storage):
            return TritonAttention(storage, batch_invariant=batch_invariant)
    kernels = native_kernels(storage.device, storage.dtype)
    if kernels is not None and suits_native(storage):
        return NativeAttention(storage, kernels)
    return TorchAttention(storage)
