"""GuideLLM: httpx in worker processes."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.install import executable
from benchmarks.peers.protocol import Figures, Load


class GuideLlm:
    """Its ITL is one mean per request, which others call TPOT (its own TPOT holds TTFT too); it has no gaps.

    Its clock starts at the first write of a request's head.
    """

    name = "guidellm"
    alone = False
    slow = True

    def command(self, load: Load, folder: Path) -> list[str]:
        """The profile ``concurrent`` for a closed loop, ``poisson`` for an open loop."""
        closed = f"kind=concurrent,streams={load.concurrency}"
        profile = f"kind=poisson,rate={load.rate_per_s:g}" if load.rate_per_s else closed
        return [
            executable("guidellm", "guidellm"), "run",
            "--backend", f"kind=openai_http,target={load.base_url},model=truth,request_format={load.path}",
            "--profile", profile, "--constraint", f"kind=max_requests,count={load.requests}",
            "--data", f"kind=synthetic_text,prompt_tokens={load.input_tokens},output_tokens={load.output_tokens}",
            "--tokenizer", f"kind=hf_auto,model={load.tokenizer}",
            "--output", f"kind=json,path={folder / 'result.json'}", "--disable-console",
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """One worker, because it has one core; no network."""
        return {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "HF_HUB_OFFLINE": "1"}

    def figures(self, load: Load, folder: Path) -> Figures:  # noqa: ARG002  (others need it)
        """Read its JSON output, successful requests only."""
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())["benchmarks"][0]
        metrics, totals = result["metrics"], result["metrics"]["request_totals"]
        ttft, itl = (metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
        return Figures(
            ttft_mean_ms=ttft["mean"],
            ttft_p50_ms=ttft["median"],
            ttft_p99_ms=ttft["percentiles"]["p99"],
            itl_mean_ms=itl["mean"],
            itl_p99_ms=itl["percentiles"]["p99"],
            itl_of="requests",
            tpot_mean_ms=itl["mean"],
            ok=totals["successful"],
            failed=totals["errored"] + totals["incomplete"],
            duration_s=result["duration"],
            output_tokens=round(metrics["output_token_count"]["successful"]["total_sum"]),
        )
