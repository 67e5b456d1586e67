"""Collectives through torch.distributed: gloo over loopback between CPUs, NCCL between GPUs.

The process groups are created directly, without torch's global default group, so that an engine is independent of other
uses of torch.distributed in its process, and several engines can share a process.
"""

import datetime as dt
from pathlib import Path
from typing import Any

import torch
from torch.distributed import (
    AllreduceOptions,
    BroadcastOptions,
    FileStore,  # pyright: ignore[reportPrivateImportUsage] (torch documents it)
    GatherOptions,
    ReduceOp,
    distributed_c10d,
)

from bakeoff.reference_engine.parallel.peer_memory import PeerMemory, peer_memory

TIMEOUT_S = 120.0
"""Timeout of a collective, in seconds; ranks have equal work, so none is far behind."""


class Group:
    """The ranks of an engine, over a process group; see `Ranks`.

    Args:
        backend: a torch.distributed process group.
        rank: of this process.
        size: number of ranks.
        peers: sums few rows sooner; None where GPUs do not reach each other's memory.
    """

    def __init__(
        self,
        backend: Any,  # noqa: ANN401 (torch's stubs lack its methods)
        rank: int,
        size: int,
        peers: PeerMemory | None = None,
    ) -> None:
        self._backend = backend
        self._peers = peers
        self.rank, self.size = rank, size
        self._to_first = GatherOptions()
        self._to_first.rootRank = 0
        self._from_first = BroadcastOptions()
        self._from_first.rootRank = 0
        self._minimum = AllreduceOptions()
        self._minimum.reduceOp = ReduceOp.MIN  # pyright: ignore[reportAttributeAccessIssue] (the stubs' mistake)

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Ranks.sum`; in place."""
        if self._peers is not None and self._peers.suits(rows):
            return self._peers.sum(rows)
        self._backend.allreduce([rows]).wait()
        return rows

    def least(self, value: torch.Tensor) -> torch.Tensor:
        """See `Ranks.least`; in place."""
        self._backend.allreduce([value], self._minimum).wait()
        return value

    def broadcast(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rank 0's tokens, in place on all others."""
        self._backend.broadcast([tokens], self._from_first).wait()
        return tokens

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """See `Ranks.gather`."""
        if not logits.shape[0]:  # no request samples in this step, on any rank
            return logits
        parts = [torch.empty_like(logits) for _ in range(self.size)] if self.rank == 0 else []
        self._backend.gather([parts] if parts else [], [logits], self._to_first).wait()
        return torch.cat(parts, dim=1)[:, :vocab_size].contiguous() if parts else logits

    def abort(self) -> None:
        """Aborts pending collectives, whose results are then undefined; callable from any thread."""
        peers = self._peers
        if peers is not None:
            peers.abort()
        self._backend.abort()

    def free(self) -> None:
        """Gives memory back that the other ranks, which have ended, wrote to."""
        self._peers = None


def connect(folder: Path, rank: int, size: int, device: torch.device) -> Group:
    """Connects to the other ranks; returns once all are connected.

    Args:
        folder: for rendezvous; initially empty, the same on all ranks.
        rank: of this process.
        size: number of ranks.
        device: of this rank.

    Raises:
        RuntimeError: a rank did not connect in time.
    """
    timeout = dt.timedelta(seconds=TIMEOUT_S)
    # Unlike a port, a file cannot be reached by other users.
    store = FileStore(str(folder / "store"), size)
    store.set_timeout(timeout)
    kind, options = _nccl() if device.type == "cuda" else _gloo()
    options._timeout = timeout  # noqa: SLF001 (no public name)
    return Group(kind(store, rank, size, options), rank, size, peer_memory(store, rank, size, device))


def _gloo() -> tuple[Any, Any]:
    """The process group's class and its options."""
    kind: Any = distributed_c10d.ProcessGroupGloo
    options = kind._Options()  # noqa: SLF001 (no public name)
    options._devices = [kind.create_device(hostname="127.0.0.1")]  # noqa: SLF001
    return kind, options


def _nccl() -> tuple[Any, Any]:
    kind: Any = distributed_c10d.ProcessGroupNCCL
    return kind, kind.Options()
