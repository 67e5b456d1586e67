"""Transformers' `generate` as one side: reads a line with requests of one prompt length, writes a line with seconds.

Requests without arrival times are one batch. Requests with arrival times are answered in order: a batch is all waiting
requests, but at most the job's `at_once`.
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
def answer_batch(prompts: list[list[int]], output: int) -> int:
    """Answer one batch; returns the number of output tokens."""
    ids = torch.tensor(prompts)
    length = {"min_new_tokens": output, "max_new_tokens": output}
    tokens = llm.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **length)
    return tokens[:, ids.shape[1] :].numel()


def answer_arrivals(job: dict[str, Any]) -> int:
    """Answer requests as they arrive; returns the number of output tokens."""
    pending, num_tokens = deque(zip(job["arrivals_s"], job["prompts"], strict=True)), 0
    began = time.perf_counter()
    while pending:
        time.sleep(max(0.0, pending[0][0] + began - time.perf_counter()))
        num_waiting = sum(arrival_s <= time.perf_counter() - began for arrival_s, _ in pending)
        batch = [pending.popleft()[1] for _ in range(max(1, min(num_waiting, job["at_once"])))]
        num_tokens += answer_batch(batch, job["output"])
    return num_tokens


print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    began = time.perf_counter()
    num_tokens = answer_arrivals(job) if "arrivals_s" in job else answer_batch(job["prompts"], job["output"])
    seconds = time.perf_counter() - began
    assert num_tokens == len(job["prompts"]) * job["output"]
    print(json.dumps({"seconds": seconds}), flush=True)
