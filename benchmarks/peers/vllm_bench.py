"""Runs ``vllm bench serve``: aiohttp on one event loop in one process."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.install import executable
from benchmarks.peers.protocol import Figures, Load

_DRIVER = str(Path(__file__).with_name("drivers") / "vllm_bench.py")


class VllmBench:
    """Its ITL pools the gaps of all requests; its clock starts when a request's coroutine does."""

    name = "vllm"
    alone = True
    slow = False

    def command(self, load: Load, folder: Path) -> list[str]:
        """No ready check and no warm-up, which would send requests too."""
        shape = ["--request-rate", f"{load.rate_per_s:g}"] if load.rate_per_s else []
        shape += ["--max-concurrency", str(load.concurrency)] if load.concurrency else []
        return [
            executable("vllm"), _DRIVER,
            "--backend", "openai" if load.endpoint == "completions" else "openai-chat",
            "--base-url", load.base_url, "--endpoint", load.path, "--model", "truth",
            "--tokenizer", str(load.tokenizer), "--num-prompts", str(load.requests), "--ignore-eos",
            "--dataset-name", "random", "--random-input-len", str(load.input_tokens),
            "--random-output-len", str(load.output_tokens),
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
            "--save-result", "--result-dir", str(folder), "--result-filename", "result.json", "--disable-tqdm",
            *shape,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """No network."""
        return {"HF_HUB_OFFLINE": "1"}

    def figures(self, load: Load, folder: Path) -> Figures:  # noqa: ARG002  (others need it)
        """Read the file of ``--save-result``."""
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return Figures(
            ttft_mean_ms=result["mean_ttft_ms"],
            ttft_p50_ms=result["median_ttft_ms"],
            ttft_p99_ms=result["p99_ttft_ms"],
            itl_mean_ms=result["mean_itl_ms"],
            itl_p99_ms=result["p99_itl_ms"],
            tpot_mean_ms=result["mean_tpot_ms"],
            ok=result["completed"],
            failed=result["failed"],
            duration_s=result["duration"],
            output_tokens=result["total_output_tokens"],
        )
