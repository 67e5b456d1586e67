"""Ranks that talk through torch.distributed: gloo between CPUs, over the loopback interface, and NCCL between GPUs.

The groups are made directly and not as torch's one default group, so that an engine neither needs nor disturbs what
else its process does with torch.distributed, and several engines can live in one.
"""

import datetime
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import FileStore, GatherOptions
from torch.distributed.distributed_c10d import Backend, ProcessGroupGloo

TIMEOUT_S = 120.0
"""How long a rank waits for the others in one exchange; they compute the same, so their skew is a fraction of a step."""


class Group:
    """Some ranks; see `Ranks`.

    Args:
        backend: a torch.distributed process group.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.rank, self.size = backend.rank(), backend.size()
        self._to_first = GatherOptions()
        self._to_first.rootRank = 0

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Ranks.sum`; in place."""
        self._backend.allreduce([rows]).wait()
        return rows

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """See `Ranks.gather`."""
        if not logits.shape[0]:  # the chunk of a prompt whose end is not in sight; all ranks know
            return logits
        parts = [torch.empty_like(logits) for _ in range(self.size)] if self.rank == 0 else []
        self._backend.gather([parts] if parts else [], [logits], self._to_first).wait()
        return torch.cat(parts, dim=1)[:, :vocab_size] if parts else logits

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
    store = FileStore(str(folder / "store"), size)
    store.set_timeout(datetime.timedelta(seconds=TIMEOUT_S))
    return Group(_MAKERS[device.type](store, rank, size))


def _gloo(store: FileStore, rank: int, size: int) -> Backend:
    options = ProcessGroupGloo._Options()  # noqa: SLF001 (the public name has no devices to set)
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]  # noqa: SLF001
    options._timeout = datetime.timedelta(seconds=TIMEOUT_S)  # noqa: SLF001
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(store: FileStore, rank: int, size: int) -> Backend:
    from torch.distributed.distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415 (not in builds for the CPU)

    options = ProcessGroupNCCL.Options()
    options._timeout = datetime.timedelta(seconds=TIMEOUT_S)  # noqa: SLF001
    return ProcessGroupNCCL(store, rank, size, options)


_MAKERS: dict[str, Callable[[FileStore, int, int], Backend]] = {"cpu": _gloo, "cuda": _nccl}
