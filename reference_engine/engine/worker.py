"""The process of rank 1 and up: `python -m bakeoff.reference_engine.engine.worker FD`.

It reads messages from the pipe with that file descriptor and exits when the pipe closes, also if rank 0 is killed.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from bakeoff.reference_engine.engine.executors import build_executor, device_of_rank, shape_of
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.models.execution import LocalExecutor
from bakeoff.reference_engine.parallel.group import connect
from bakeoff.reference_engine.parallel.messages import READY, Assignment, decode_assignment, decode_batch


def main(pipe: Connection) -> int:
    """Executes batches until the pipe closes; returns the exit status."""
    try:
        pipe.send_bytes(READY)
        assignment = decode_assignment(pipe.recv_bytes())
        threading.Thread(target=_end_with_pipe, args=(pipe.fileno(), assignment.folder), daemon=True).start()
        executor, receive = _executor(assignment)
        pipe.send_bytes(READY)
        with torch.inference_mode():
            while True:
                executor.execute(decode_batch(pipe.recv_bytes(), receive))
    except (EOFError, ConnectionError):
        return 0
    except Exception as error:  # noqa: BLE001 (rank 0 reports any error to the user)
        with contextlib.suppress(OSError):
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
        return 1


def _executor(assignment: Assignment) -> tuple[LocalExecutor, Callable[[int], torch.Tensor]]:
    """The executor of this rank, and what receives the tokens that rank 0 has sampled."""
    config = assignment.config
    device = device_of_rank(config, assignment.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ranks = connect(Path(assignment.folder), assignment.rank, shape_of(config), device)

    def receive(count: int) -> torch.Tensor:
        return ranks.broadcast(torch.zeros(count, dtype=torch.int64, device=device))

    return build_executor(config, open_checkpoint(Path(config.model), config.load_format), ranks), receive


def _end_with_pipe(descriptor: int, folder: str) -> None:
    """Exits the process at once when rank 0 closes its end of the pipe; the kernel closes it if rank 0 is killed.

    The main thread and the GPU may be blocked in a collective with ranks that have exited.
    """
    end = select.poll()
    end.register(descriptor, select.POLLRDHUP)
    end.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    # Rank 0 receives these signals too, and decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = main(Connection(int(sys.argv[1])))
    sys.stderr.flush()
    os._exit(status)  # skips torch.distributed's clean-up, which waits for ranks that have exited
