"""The reference engine as one side of `offline.py`."""

import gc
import statistics
import time
from typing import Any

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.offline import load_engine
from benchmarks.gpu.sides.side import Run, serve


def load(folder: str, options: dict[str, Any]) -> Run:
    engine = load_engine(
        EngineConfig(
            **{
                "model": folder, "dtype": options["dtype"], "device": options["device"],
                "max_model_len": options["max_model_len"], "max_num_seqs": options["seats"],
                "max_num_batched_tokens": options["step_tokens"],
                "gpu_memory_utilization": options["memory"], "enable_prefix_caching": False, "max_queue": 1 << 20,
                "tensor_parallel_size": options["tensor"], "pipeline_parallel_size": options["pipeline"],
                "expert_parallel": options["expert"],
            }
            | options["engine"]
        )
    )  # fmt: skip
    gc.collect()
    gc.freeze()  # as the server does

    @torch.inference_mode()
    def run(prompts: list[list[int]], output: int) -> dict[str, Any]:
        params = SamplingParams(max_tokens=output, temperature=0.0)
        requests = [Request(str(number), prompt, params) for number, prompt in enumerate(prompts)]
        num_tokens, decodes_s, steps, began = 0, list[float](), 0, time.perf_counter()
        last = began
        for request in requests:
            engine.add(request)
        while engine.has_work:
            report = engine.step()
            now, steps = time.perf_counter(), steps + 1
            num_tokens += len(report.outputs)
            if report.computed_tokens == len(report.outputs):  # no prompt in it
                decodes_s.append(now - last)
            last = now
        seconds = time.perf_counter() - began
        assert num_tokens == len(prompts) * output, f"{num_tokens} tokens instead of {len(prompts) * output}"
        decode_ms = statistics.median(decodes_s) * 1e3 if decodes_s else None
        return {"seconds": seconds, "steps": steps, "step_ms": seconds / steps * 1e3, "decode_step_ms": decode_ms}

    return run


if __name__ == "__main__":
    serve(load)
