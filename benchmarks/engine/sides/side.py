"""An engine in a process of its own, which lasts for a whole comparison and is idle while others work."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bakeoff.engines.environments import find

VLLM_ENV = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
"""By default vLLM keeps one core free; without a server beside it, it is faster on all cores."""


class Side:
    """Starts ``of_NAME.py`` and exchanges lines of JSON with it.

    Args:
        name: ``ours``, ``transformers`` or ``vllm``.
        model: checkpoint folder.
        dtype: of the weights.
        max_requests: concurrent requests, at most.
    """

    def __init__(self, name: str, model: str, dtype: str, max_requests: int) -> None:
        self.name = name
        python = str(find(None, ("vllm-cpu",)).python) if name == "vllm" else sys.executable
        self._log = Path(tempfile.gettempdir(), f"bakeoff-side-{name}.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, Path(__file__).with_name(f"of_{name}.py"), model, dtype, str(max_requests)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, **VLLM_ENV},
            )  # fmt: skip
        if self._line() != "ready\n":
            raise SystemExit(f"{name} does not start; see {self._log}")

    def seconds(self, prompts: list[list[int]], output: int, **more: Any) -> float:  # noqa: ANN401  (JSON)
        """Seconds to answer all prompts with `output` tokens each.

        Args:
            prompts: token ids.
            output: exact number of tokens.
            more: ``arrivals_s``, the arrival time of each prompt; other options of the side.
        """
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"prompts": prompts, "output": output, **more}) + "\n")
        self._process.stdin.flush()
        answer = self._line()
        if not answer:
            raise SystemExit(f"{self.name} ended; see {self._log}")
        return json.loads(answer)["seconds"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def random_prompts(count: int, length: int, seed: str) -> list[list[int]]:
    """Random token ids, which no prefix cache holds."""
    rng = random.Random(seed)
    return [[rng.randrange(100, 40_000) for _ in range(length)] for _ in range(count)]
