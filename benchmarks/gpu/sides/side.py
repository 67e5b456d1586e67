"""An engine in a process of its own, which answers jobs by lines of JSON until its deadline."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

Run = Callable[[list[list[int]], int], dict[str, Any]]
"""Answers each prompt with an exact number of tokens; returns ``seconds`` and other figures."""


class OutOfTimeError(Exception):
    """The budget is used up; the process has been killed."""


class SideEndedError(Exception):
    """The process ended by itself; its log says why."""


class Side:
    """Starts ``of_NAME.py``; as a context manager it also ends the process.

    Args:
        name: ``ours``, ``vllm``, ``hf`` or ``machine``.
        folder: with the model's config.json.
        options: for the engine.
        log: file for its output.
        deadline_s: on time.monotonic's clock.
    """

    def __init__(self, name: str, folder: Path, options: dict[str, Any], log: Path, deadline_s: float) -> None:
        self.name, self._deadline_s, self._log = name, deadline_s, log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.gpu.sides.of_{name}", str(folder), json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True,
            )  # fmt: skip
        self._unread = b""
        self.ready = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            assert self._process.stdin
            self._process.stdin.close()
            self._process.wait(20)
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # vLLM's own processes, too
        self._process.wait()

    def ask(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        """The result of `Run`, or ``error`` if it raised or the process ended.

        Raises:
            OutOfTimeError: there is no answer before the deadline.
        """
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "output": output}).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer()
        except (BrokenPipeError, SideEndedError):
            return {"error": f"{self.name} ended; see {self._log}"}

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        while b"\n" not in self._unread:
            remaining_s = self._deadline_s - time.monotonic()
            if remaining_s <= 0 or not select.select([self._process.stdout], [], [], remaining_s)[0]:
                self._kill()
                raise OutOfTimeError
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise SideEndedError(f"{self.name} ended; see {self._log}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)


def serve(load: Callable[[str, dict[str, Any]], Run]) -> None:
    """The process's part: load the engine of the command line, then answer jobs until stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard output

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    began = time.perf_counter()
    run = load(sys.argv[1], json.loads(sys.argv[2]))
    answer({"start_s": time.perf_counter() - began})
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer(run(job["prompts"], job["output"]))
        except Exception as error:  # noqa: BLE001  (any error is the cell's result)
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            answer({"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]})
