"""Transformers' `generate` over one static batch as one side of `offline.py`."""

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.sides.side import Run, serve


def load(folder: str, options: dict[str, Any]) -> Run:
    device = options["device"]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, options["dtype"])
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map=device, **options["engine"])
    model.eval()

    @torch.inference_mode()
    def run(prompts: list[list[int]], output: int) -> dict[str, Any]:
        began = time.perf_counter()
        ids = torch.tensor(prompts, device=device)
        length = {"min_new_tokens": output, "max_new_tokens": output}
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **length)
        num_tokens = tokens[:, ids.shape[1] :].cpu().numel()
        seconds = time.perf_counter() - began
        assert num_tokens == len(prompts) * output
        return {"seconds": seconds}

    return run


if __name__ == "__main__":
    serve(load)
