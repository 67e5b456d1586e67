"""SGLang's Rust client: one process, tokio, a worker thread per core that it may use."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.install import executable
from benchmarks.peers.protocol import Figures, Load

_DRIVER = str(Path(__file__).with_name("drivers") / "sglang_rust.py")


class SglangRust:
    """Its ITL pools the gaps of all requests; it reports how many requests succeeded, but not how many failed."""

    name = "sglang-rust"
    alone = True
    slow = False

    def command(self, load: Load, folder: Path) -> list[str]:
        """No warm-up, which would send requests too."""
        shape = ["--request-rate", f"{load.rate_per_s:g}"] if load.rate_per_s else []
        shape += ["--max-concurrency", str(load.concurrency)] if load.concurrency else []
        return [
            executable("sglang"), _DRIVER,
            "--backend", "vllm" if load.endpoint == "completions" else "vllm-chat",
            "--base-url", load.base_url, "--model", "truth", "--tokenizer", str(load.tokenizer),
            "--dataset-name", "random-ids", "--random-input-len", str(load.input_tokens),
            "--random-output-len", str(load.output_tokens), "--random-range-ratio", "1",
            "--num-prompts", str(load.requests), "--warmup-requests", "0",
            "--output-file", str(folder / "result.jsonl"), "--disable-tqdm",
            *shape,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """No network."""
        return {"HF_HUB_OFFLINE": "1"}

    def figures(self, load: Load, folder: Path) -> Figures:  # noqa: ARG002  (others need it)
        """Read the line that it appends to its output file."""
        result: dict[str, Any] = json.loads((folder / "result.jsonl").read_text())
        return Figures(
            ttft_mean_ms=result["mean_ttft_ms"],
            ttft_p50_ms=result["median_ttft_ms"],
            ttft_p99_ms=result["p99_ttft_ms"],
            itl_mean_ms=result["mean_itl_ms"],
            itl_p99_ms=result["p99_itl_ms"],
            tpot_mean_ms=result["mean_tpot_ms"],
            ok=result["completed"],
            failed=None,
            duration_s=result["duration"],
            output_tokens=result["total_output_tokens"],
        )
