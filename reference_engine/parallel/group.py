"""Collectives through torch.distributed: gloo over loopback between CPUs, NCCL between GPUs.

The process groups are created directly, without torch's global default group, so that an engine is independent of other
uses of torch.distributed in its process, and several engines can share a process.
"""

import datetime as dt
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import (
    BroadcastOptions,
    FileStore,  # pyright: ignore[reportPrivateImportUsage] (torch documents it)
    GatherOptions,
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    distributed_c10d,
)

from bakeoff.reference_engine.core.ranks import Stage
from bakeoff.reference_engine.parallel.peer_memory import PeerMemory, peer_memory

TIMEOUT_S = 600.0
"""Timeout of a collective, in seconds: a stage waits while those before it compute a step."""
_POLL_S = 0.01

Backend = Any  # a torch.distributed process group, whose methods torch's stubs lack


class Shape(NamedTuple):
    """Of the processes that share a model.

    Attributes:
        tensor: ranks of a stage.
        stages: of the pipeline.
        contexts: processes that share out the tokens of long steps; with more than one, the others are 1.
    """

    tensor: int
    stages: int = 1
    contexts: int = 1

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.tensor * self.stages * self.contexts

    def stage_of(self, process: int) -> Stage:
        """The stage of a process: the first processes are the last stage, so that process 0 has the logits."""
        return Stage() if self.contexts > 1 else Stage(self.stages - 1 - process // self.tensor, self.stages)


class Group:
    """A process's connections to the others that share a model; see `Ranks`.

    Args:
        process: number of this process.
        shape: of all of them.
        store: of all of them.
        connected: connects some of them: takes a name for them and their numbers, of which this process's is one.
        peers: sums few rows sooner; None where GPUs do not reach each other's memory.
    """

    def __init__(
        self,
        process: int,
        shape: Shape,
        store: Store,
        connected: Callable[[str, Sequence[int]], Backend],
        peers: PeerMemory | None = None,
    ) -> None:
        tensor = shape.tensor
        self._num_processes, self._store, self._peers = shape.size, store, peers
        self.process, self.stage, self.rank, self.size = process, shape.stage_of(process), process % tensor, tensor
        own = range(process - self.rank, process - self.rank + tensor)
        self._own: Backend = connected(f"stage {self.stage.number}", own) if tensor > 1 else None
        # Apart from each other: what is sent one way must not wait for what comes the other way.
        self._before: Backend = None if self.stage.is_first else connected(
            f"to {process}", (process + tensor, process)
        )  # fmt: skip
        self._behind: Backend = None if self.stage.is_last else connected(
            f"to {process - tensor}", (process, process - tensor)
        )  # fmt: skip
        self.contexts, self.context = shape.contexts, process if shape.contexts > 1 else 0
        self._contexts: Backend = connected("contexts", range(shape.contexts)) if shape.contexts > 1 else None
        self._tokens: Backend = self._own or self._contexts
        if shape.stages > 1:
            readers = range(shape.size - tensor, shape.size)
            self._tokens = connected("tokens", (0, *readers)) if process in (0, *readers) else None
        self._sent = deque[tuple[Any, torch.Tensor]]()
        self._num_values, self._is_aborted = 0, threading.Event()
        self._to_first = GatherOptions()
        self._to_first.rootRank = 0
        self._from_first = BroadcastOptions()
        self._from_first.rootRank = 0

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """In place."""
        if self._peers is not None and self._peers.suits(rows):
            return self._peers.sum(rows)
        if self._own is not None:
            self._own.allreduce([rows]).wait()
        return rows

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.contexts)]
        self._contexts.allgather([parts], [rows]).wait()
        return torch.cat(parts)

    def least(self, value: int) -> int:
        """Every process must call it equally often.

        Raises:
            RuntimeError: the group was aborted.
        """
        names = [f"value {self._num_values} of {number}" for number in range(self._num_processes)]
        self._num_values += 1
        self._store.set(names[self.process], str(value))
        while not self._store.check(names):
            if self._is_aborted.wait(_POLL_S):
                raise RuntimeError("another process has ended")
        return min(int(self._store.get(name)) for name in names)

    def broadcast(self, tokens: torch.Tensor) -> torch.Tensor:
        """Process 0's tokens, in place on those that embed them; the others do nothing."""
        if self._tokens is not None:
            self._tokens.broadcast([tokens], self._from_first).wait()
        return tokens

    def gather(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        if not logits.shape[0] or self._own is None:  # no request samples in this step, on any rank
            return logits
        parts = [torch.empty_like(logits) for _ in range(self.size)] if self.rank == 0 else []
        self._own.gather([parts] if parts else [], [logits], self._to_first).wait()
        return torch.cat(parts, dim=1)[:, :vocab_size].contiguous() if parts else logits

    def receive(self, rows: torch.Tensor) -> torch.Tensor:
        """On GPUs the stream waits, not the caller."""
        self._before.recv([rows], 0, 0).wait()
        return rows

    def send(self, rows: torch.Tensor) -> None:
        """Waits between CPUs only."""
        work = self._behind.send([rows], 1, 0)
        if rows.device.type == "cpu":
            work.wait()
            return
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()
        self._sent.append((work, rows))  # keeps their memory

    def abort(self) -> None:
        """Aborts pending collectives, whose results are then undefined; callable from any thread."""
        self._is_aborted.set()
        peers = self._peers
        if peers is not None:
            peers.abort()
        for backend in {self._own, self._before, self._behind, self._tokens, self._contexts} - {None}:
            backend.abort()

    def free(self) -> None:
        """Gives memory back that the other ranks, which have ended, wrote to."""
        self._peers = None


def connect(folder: Path, process: int, shape: Shape, device: torch.device) -> Group:
    """Connects to the other processes; returns once all are connected.

    Args:
        folder: for rendezvous; initially empty, the same for all.
        process: number of this process.
        shape: of all of them.
        device: of this process.

    Raises:
        RuntimeError: a process did not connect in time.
    """
    timeout = dt.timedelta(seconds=TIMEOUT_S)
    # Unlike a port, a file cannot be reached by other users.
    store = FileStore(str(folder / "store"), shape.size)
    store.set_timeout(timeout)

    def connected(name: str, members: Sequence[int]) -> Backend:
        kind, options = _nccl() if device.type == "cuda" else _gloo()
        options._timeout = timeout  # noqa: SLF001 (no public name)
        return kind(PrefixStore(name, store), list(members).index(process), len(members), options)

    peers = None
    if shape.tensor > 1:
        own = PrefixStore(f"peers of stage {shape.stage_of(process).number}", store)
        peers = peer_memory(own, process % shape.tensor, shape.tensor, device)
    return Group(process, shape, store, connected, peers)


def _gloo() -> tuple[Any, Any]:
    """The process group's class and its options."""
    kind: Any = distributed_c10d.ProcessGroupGloo
    options = kind._Options()  # noqa: SLF001 (no public name)
    options._devices = [kind.create_device(hostname="127.0.0.1")]  # noqa: SLF001
    return kind, options


def _nccl() -> tuple[Any, Any]:
    kind: Any = distributed_c10d.ProcessGroupNCCL
    return kind, kind.Options()
