"""The reference engine as one side: a line with requests in, a line with seconds out."""

import json
import sys
import time
from collections import deque
from typing import Any

from reference_engine.engine.config import EngineConfig
from reference_engine.engine.request import Request, SamplingParams
from reference_engine.offline import generate, load_engine

model, max_num_seqs = sys.argv[1], int(sys.argv[3])
dtype: Any = sys.argv[2]
engine = load_engine(
    EngineConfig(
        model=model, dtype=dtype, device="cpu", max_model_len=2048, max_num_seqs=max_num_seqs,
        enable_prefix_caching=False,
    )
)  # fmt: skip


def together(job: dict[str, Any], params: SamplingParams) -> int:
    """Answer requests that are all there; returns how many tokens."""
    tokens = generate(engine, job["prompts"], [params] * len(job["prompts"]))
    return sum(map(len, tokens))


def as_they_come(job: dict[str, Any], params: SamplingParams) -> int:
    """Answer requests that come one after the other: each joins the batch at the next step."""
    coming, made = deque(enumerate(zip(job["arrivals_s"], job["prompts"], strict=True))), 0
    began = time.perf_counter()
    while coming or engine.has_work:
        while coming and coming[0][1][0] <= time.perf_counter() - began:
            number, (_, prompt) = coming.popleft()
            engine.add(Request(str(number), prompt, params))
        if engine.has_work:
            made += len(engine.step().outputs)
        else:
            time.sleep(max(0.0, coming[0][1][0] + began - time.perf_counter()))
    return made


print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    params = SamplingParams(max_tokens=job["output"], temperature=0.0)
    began = time.perf_counter()
    made = (as_they_come if "arrivals_s" in job else together)(job, params)
    seconds = time.perf_counter() - began
    assert made == len(job["prompts"]) * job["output"]
    print(json.dumps({"seconds": seconds}), flush=True)
