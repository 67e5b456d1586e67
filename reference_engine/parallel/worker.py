"""The process of a rank other than the first: `python -m reference_engine.parallel.worker FD`.

It takes commands from the pipe at that file descriptor and exits when the pipe closes, however rank 0 dies.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from reference_engine.engine.assembly import build_executor, device_of_rank
from reference_engine.engine.execution import LocalExecutor
from reference_engine.loading.checkpoint import open_checkpoint
from reference_engine.parallel.group import connect
from reference_engine.parallel.messages import READY, Assignment, decode_assignment, decode_batch


def main(pipe: Connection) -> int:
    """Obeys until the pipe ends; returns the exit status."""
    try:
        pipe.send_bytes(READY)
        assignment = decode_assignment(pipe.recv_bytes())
        threading.Thread(target=_end_with_pipe, args=(pipe.fileno(), assignment.folder), daemon=True).start()
        executor = _executor(assignment)
        pipe.send_bytes(READY)
        with torch.inference_mode():
            while True:
                executor.execute(decode_batch(pipe.recv_bytes()))
    except (EOFError, ConnectionError):
        return 0
    except Exception as error:  # noqa: BLE001 (rank 0 tells the user, whatever it is)
        with contextlib.suppress(OSError):
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
        return 1


def _executor(assignment: Assignment) -> LocalExecutor:
    config = assignment.config
    device = device_of_rank(config, assignment.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ranks = connect(Path(assignment.folder), assignment.rank, config.tensor_parallel_size, device)
    return build_executor(config, open_checkpoint(Path(config.model), config.load_format), ranks)


def _end_with_pipe(descriptor: int, folder: str) -> None:
    """Waits until rank 0 writes no more, which the kernel sees to if need be, and leaves at once.

    The other thread may be in an exchange with ranks that are no more, and so may the GPU.
    """
    end = select.poll()
    end.register(descriptor, select.POLLRDHUP)
    end.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    # Rank 0 gets these too, and decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = main(Connection(int(sys.argv[1])))
    sys.stderr.flush()
    os._exit(status)  # without what torch.distributed does at the end: it would wait for ranks that have ended
