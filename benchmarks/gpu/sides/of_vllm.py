"""Real vLLM as one side of `offline.py`."""

import os
import time
from typing import Any

from benchmarks.gpu.sides.side import Run, serve


def load(folder: str, options: dict[str, Any]) -> Run:
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # FlashInfer compiles at run time, which needs nvcc
    from vllm import LLM, SamplingParams  # noqa: PLC0415  (after the environment)

    llm = LLM(
        **{
            "model": folder, "skip_tokenizer_init": True, "dtype": options["dtype"],
            "max_model_len": options["max_model_len"], "max_num_seqs": options["seats"],
            "max_num_batched_tokens": options["step_tokens"],
            "gpu_memory_utilization": options["memory"], "enable_prefix_caching": False,
            "tensor_parallel_size": options["tensor"], "pipeline_parallel_size": options["pipeline"],
            "enable_expert_parallel": options["expert"],
        }
        | options["engine"]
    )  # fmt: skip

    def run(prompts: list[list[int]], output: int) -> dict[str, Any]:
        params = SamplingParams(
            max_tokens=output, min_tokens=output, ignore_eos=True, temperature=0.0, detokenize=False
        )
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        began = time.perf_counter()
        answers = llm.generate(requests, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert all(len(answer.outputs[0].token_ids) == output for answer in answers)
        return {"seconds": seconds}

    return run


if __name__ == "__main__":
    serve(load)
