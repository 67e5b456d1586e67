"""Transformers' `generate` as one side: a line with requests of one prompt length in, a line with seconds out.

Requests that are all there are one batch. Those that come one after the other are answered in turn, as many at once as
wait then, but never more than the job's `at_once`.
"""

import json
import sys
import time
from collections import deque
from typing import Any

import torch
from transformers import AutoModelForCausalLM

model, dtype, _ = sys.argv[1:]
llm: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))


@torch.inference_mode()
def together(prompts: list[list[int]], output: int) -> int:
    """Answer one batch; returns how many tokens."""
    ids = torch.tensor(prompts)
    length = {"min_new_tokens": output, "max_new_tokens": output}
    tokens = llm.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **length)
    return tokens[:, ids.shape[1] :].numel()


def as_they_come(job: dict[str, Any]) -> int:
    """Answer requests after their arrival; returns how many tokens."""
    coming, made = deque(zip(job["arrivals_s"], job["prompts"], strict=True)), 0
    began = time.perf_counter()
    while coming:
        time.sleep(max(0.0, coming[0][0] + began - time.perf_counter()))
        here = sum(at <= time.perf_counter() - began for at, _ in coming)
        batch = [coming.popleft()[1] for _ in range(max(1, min(here, job["at_once"])))]
        made += together(batch, job["output"])
    return made


print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    began = time.perf_counter()
    made = as_they_come(job) if "arrivals_s" in job else together(job["prompts"], job["output"])
    seconds = time.perf_counter() - began
    assert made == len(job["prompts"]) * job["output"]
    print(json.dumps({"seconds": seconds}), flush=True)
