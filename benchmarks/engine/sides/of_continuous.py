"""Transformers' own continuous batching as one side of `open_loop.py`, as requests come."""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PAGE = 256  # tokens; Transformers' own default

model, dtype, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
llm: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
manager = llm.init_continuous_batching(
    generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
    # Left to itself it takes most of the machine's memory.
    continuous_batching_config=ContinuousBatchingConfig(page_size=PAGE, num_blocks=4 * most, max_batch_tokens=512),
)
manager.start()  # its thread sleeps while nobody asks


def as_they_come(job: dict[str, Any]) -> int:
    """Answer requests after their arrival; returns how many tokens."""
    began, made = time.perf_counter(), 0
    for at, prompt in zip(job["arrivals_s"], job["prompts"], strict=True):
        time.sleep(max(0.0, at + began - time.perf_counter()))
        manager.add_request(prompt, max_new_tokens=job["output"])
    for _ in job["prompts"]:
        answer = manager.get_result()
        assert answer is not None
        assert answer.error is None, answer.error
        made += len(answer.generated_tokens)
    return made


print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    began = time.perf_counter()
    made = as_they_come(job)
    seconds = time.perf_counter() - began
    assert made == len(job["prompts"]) * job["output"]
    print(json.dumps({"seconds": seconds}), flush=True)
manager.stop()
