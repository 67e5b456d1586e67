"""Transformers' own continuous batching as one side of `open_loop.py`, for requests as they arrive."""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PAGE = 256  # tokens; Transformers' own default

model, dtype, max_requests = sys.argv[1], sys.argv[2], int(sys.argv[3])
llm: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
manager = llm.init_continuous_batching(
    generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
    # Without a limit it takes most of the machine's memory.
    continuous_batching_config=ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=4 * max_requests, max_batch_tokens=512
    ),
)
manager.start()  # its thread sleeps while there is no request


def answer_arrivals(job: dict[str, Any]) -> int:
    """Answer requests as they arrive; returns the number of output tokens."""
    began, num_tokens = time.perf_counter(), 0
    for arrival_s, prompt in zip(job["arrivals_s"], job["prompts"], strict=True):
        time.sleep(max(0.0, arrival_s + began - time.perf_counter()))
        manager.add_request(prompt, max_new_tokens=job["output"])
    for _ in job["prompts"]:
        answer = manager.get_result()
        assert answer is not None
        assert answer.error is None, answer.error
        num_tokens += len(answer.generated_tokens)
    return num_tokens


print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    began = time.perf_counter()
    num_tokens = answer_arrivals(job)
    seconds = time.perf_counter() - began
    assert num_tokens == len(job["prompts"]) * job["output"]
    print(json.dumps({"seconds": seconds}), flush=True)
manager.stop()
