"""Ranks that talk through torch.distributed: gloo between CPUs, over the loopback interface, and NCCL between GPUs.

The groups are made directly and not as torch's one default group, so that an engine neither needs nor disturbs what
else its process does with torch.distributed, and several engines can live in one.
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
"""Seconds that a rank waits for the others in an exchange; they compute alike, so that none is far behind."""


class Group:
    """Some ranks; see `Ranks`.

    Args:
        backend: a torch.distributed process group.
        rank: this one's number.
        size: how many there are.
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
        if not logits.shape[0]:  # no prompt's end is in sight; all ranks know
            return logits
        parts = [torch.empty_like(logits) for _ in range(self.size)] if self.rank == 0 else []
        self._backend.gather([parts] if parts else [], [logits], self._to_first).wait()
        return torch.cat(parts, dim=1)[:, :vocab_size].contiguous() if parts else logits

    def abort(self) -> None:
        """Ends what is under way; callable from any thread. What it computed is not to be used."""
        self._backend.abort()


def connect(folder: Path, rank: int, size: int, device: torch.device) -> Group:
    """Meets the other ranks; returns when all are there.

    Args:
        folder: empty at first, the same for all.
        rank: this one's number.
        size: how many there are.
        device: where it computes.

    Raises:
        RuntimeError: they did not come in time.
    """
    timeout = dt.timedelta(seconds=TIMEOUT_S)
    # Unlike a port, a file cannot be connected to by others.
    store = FileStore(str(folder / "store"), size)
    store.set_timeout(timeout)
    kind, options = _nccl() if device.type == "cuda" else _gloo()
    options._timeout = timeout  # noqa: SLF001 (no public name)
    return Group(kind(store, rank, size, options), rank, size)


def _gloo() -> tuple[Any, Any]:
    """The group's type and options for it."""
    kind: Any = distributed_c10d.ProcessGroupGloo
    options = kind._Options()  # noqa: SLF001 (no public name)
    options._devices = [kind.create_device(hostname="127.0.0.1")]  # noqa: SLF001
    return kind, options


def _nccl() -> tuple[Any, Any]:
    kind: Any = distributed_c10d.ProcessGroupNCCL
    return kind, kind.Options()
