"""Memory of the other ranks' GPUs, through CUDA's handles for other processes."""

from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage] (torch documents it)

from bakeoff.reference_engine.kernels.native import has_triton

if TYPE_CHECKING:
    from bakeoff.reference_engine.kernels.peer_sums import Exchange


class PeerMemory:
    """Sums of few rows through the memory of GPUs that reach each other.

    Args:
        store: where ranks leave their handles.
        rank: of this process.
        size: number of ranks.
        device: of this process.
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device) -> None:
        from bakeoff.reference_engine.kernels import peer_sums  # noqa: PLC0415 (torch for the CPU comes without Triton)

        own = torch.zeros(peer_sums.memory_bytes(size), dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)  # others may write as soon as they have the handle
        store.set(_key(rank), msgspec.msgpack.encode(own.untyped_storage()._share_cuda_()).hex())
        self._memories = [
            own if peer == rank else _opened(store.get(_key(peer)).decode(), device) for peer in range(size)
        ]
        self._exchange: Exchange = peer_sums.Exchange(
            rank,
            size,
            torch.tensor([memory.data_ptr() for memory in self._memories], device=device),
            torch.zeros(peer_sums.epochs_needed(), dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )
        self._sum, self._max_bytes = peer_sums.sum_over_ranks, peer_sums.MAX_BYTES
        self._stopping = torch.cuda.Stream(device)
        self._exchange.stop.fill_(0)  # loads its kernel: while others wait, that might wait for them

    def suits(self, rows: torch.Tensor) -> bool:
        """Whether `sum` takes these rows."""
        return rows.nbytes <= self._max_bytes and rows.is_contiguous() and rows.is_floating_point()

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """In place, bit-identical on every rank."""
        return self._sum(rows, self._exchange)

    def abort(self) -> None:
        """Ends all waiting for ranks that have exited; callable from any thread."""
        with torch.cuda.stream(self._stopping):
            self._exchange.stop.fill_(1)


def peer_memory(store: Store, rank: int, size: int, device: torch.device) -> PeerMemory | None:
    """None where the GPUs of a host do not reach each other's memory; the ranks' GPUs have consecutive numbers."""
    if device.type != "cuda" or not has_triton(device):
        return None
    first = (device.index or 0) - rank
    gpus = range(first, first + size)
    if gpus.stop > torch.cuda.device_count():
        return None
    reached = all(torch.cuda.can_device_access_peer(a, b) for a in gpus for b in gpus if a != b)
    return PeerMemory(store, rank, size, device) if reached else None


def _key(rank: int) -> str:
    return f"memory of rank {rank}"


def _opened(handle: str, device: torch.device) -> torch.Tensor:
    parts: list[Any] = msgspec.msgpack.decode(bytes.fromhex(handle))
    parts[0] = device.index  # where it is to be reached from, instead of where it is
    storage = torch.UntypedStorage._new_shared_cuda(*parts)  # noqa: SLF001 (no public name)
    # The owner keeps its memory until it exits: it need not count who uses it, nor warn of those that exit before it.
    torch.UntypedStorage._release_ipc_counter_cuda(parts[4], parts[5])  # noqa: SLF001
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
