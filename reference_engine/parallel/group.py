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
    FileStore,  # pyright: ignore[reportPrivateImportUsage] (torch documents it)
    GatherOptions,
    ReduceOp,
    distributed_c10d,
)

TIMEOUT_S = 120.0
"""Timeout of a collective, in seconds; ranks have equal work, so none is far behind."""


class Group:
    """The ranks of an engine, over a process group; see `Ranks`.

    Args:
        backend: a torch.distributed process group.
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, backend: Any, rank: int, size: int) -> None:  # noqa: ANN401 (torch's stubs lack its methods)
        self._backend = backend
        self.rank, self.size = rank, size
        self._to_first = GatherOptions()
        self._to_first.rootRank = 0
        self._minimum = AllreduceOptions()
        self._minimum.reduceOp = ReduceOp.MIN  # pyright: ignore[reportAttributeAccessIssue] (the stubs' mistake)

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Ranks.sum`; in place."""
        self._backend.allreduce([rows]).wait()
        return rows

    def least(self, value: torch.Tensor) -> torch.Tensor:
        """See `Ranks.least`; in place."""
        self._backend.allreduce([value], self._minimum).wait()
        return value

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """See `Ranks.gather`."""
        if not logits.shape[0]:  # no request samples in this step, on any rank
            return logits
        parts = [torch.empty_like(logits) for _ in range(self.size)] if self.rank == 0 else []
        self._backend.gather([parts] if parts else [], [logits], self._to_first).wait()
        return torch.cat(parts, dim=1)[:, :vocab_size].contiguous() if parts else logits

    def abort(self) -> None:
        """Aborts pending collectives, whose results are then undefined; callable from any thread."""
        self._backend.abort()


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
    return Group(kind(store, rank, size, options), rank, size)


def _gloo() -> tuple[Any, Any]:
    """The process group's class and its options."""
    kind: Any = distributed_c10d.ProcessGroupGloo
    options = kind._Options()  # noqa: SLF001 (no public name)
    options._devices = [kind.create_device(hostname="127.0.0.1")]  # noqa: SLF001
    return kind, options


def _nccl() -> tuple[Any, Any]:
    kind: Any = distributed_c10d.ProcessGroupNCCL
    return kind, kind.Options()
