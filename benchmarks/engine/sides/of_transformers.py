"""Transformers' `generate` as one side of `offline.py`: a batch of prompts of one length."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

model, dtype, _ = sys.argv[1:]
llm = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    ids = torch.tensor(job["prompts"])
    length = {"min_new_tokens": job["output"], "max_new_tokens": job["output"]}
    began = time.perf_counter()
    with torch.inference_mode():
        tokens = llm.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **length)
    seconds = time.perf_counter() - began
    assert tokens.shape[1] == ids.shape[1] + job["output"]
    print(json.dumps({"seconds": seconds}), flush=True)
