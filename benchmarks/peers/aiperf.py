"""NVIDIA AIPerf: aiohttp in workers, about seven processes that talk over ZMQ."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.install import executable
from benchmarks.peers.protocol import Figures, Load


class AiPerf:
    """ITL here is its ``inter_chunk_latency``, the pooled gaps; its ``inter_token_latency`` is one mean per request."""

    name = "aiperf"
    alone = False
    slow = True

    def command(self, load: Load, folder: Path) -> list[str]:
        """One worker and one record processor, because it has one core."""
        shape = ["--request-rate", f"{load.rate_per_s:g}", "--arrival-pattern", "poisson"] if load.rate_per_s else []
        shape += ["--concurrency", str(load.concurrency)] if load.concurrency else []
        return [
            executable("aiperf", "aiperf"), "profile", "-m", "truth",
            "--endpoint-type", load.endpoint, "--streaming", "-u", load.base_url, "--tokenizer", str(load.tokenizer),
            "--request-count", str(load.requests), "--isl", str(load.input_tokens), "--osl", str(load.output_tokens),
            "--extra-inputs", "ignore_eos:true", "--random-seed", "1", "--ui", "none", "--artifact-dir", str(folder),
            "--no-gpu-telemetry", "--no-server-metrics", "--workers-max", "1", "--record-processors", "1",
            *shape,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """No offline mode, in which it takes the tokenizer's folder for a name on the hub and refuses it."""
        return {"HF_HUB_OFFLINE": ""}

    def figures(self, load: Load, folder: Path) -> Figures:  # noqa: ARG002  (others need it)
        """Read its JSON export."""
        result: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())

        def of(metric: str, statistic: str) -> float | None:
            return (result.get(metric) or {}).get(statistic)

        return Figures(
            ttft_mean_ms=of("time_to_first_token", "avg"),
            ttft_p50_ms=of("time_to_first_token", "p50"),
            ttft_p99_ms=of("time_to_first_token", "p99"),
            itl_mean_ms=of("inter_chunk_latency", "avg"),
            itl_p99_ms=of("inter_chunk_latency", "p99"),
            tpot_mean_ms=of("inter_token_latency", "avg"),
            ok=round(of("request_count", "avg") or 0),
            failed=round(of("error_request_count", "avg") or 0),
            duration_s=of("benchmark_duration", "avg"),
            output_tokens=round(of("total_output_tokens", "avg") or 0),
        )
