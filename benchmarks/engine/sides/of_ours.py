"""The reference engine as one side: reads a line with requests, writes a line with seconds."""

import json
import sys
import time
from collections import deque
from typing import Any

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.offline import generate, load_engine

model, max_num_seqs = sys.argv[1], int(sys.argv[3])
dtype: Any = sys.argv[2]
engine = load_engine(
    EngineConfig(
        model=model, dtype=dtype, device="cpu", max_model_len=2048, max_num_seqs=max_num_seqs,
        enable_prefix_caching=False,
    )
)  # fmt: skip


def answer_batch(job: dict[str, Any], params: SamplingParams) -> int:
    """Answer requests that are all queued at once; returns the number of output tokens."""
    tokens = generate(engine, job["prompts"], [params] * len(job["prompts"]))
    return sum(map(len, tokens))


def answer_arrivals(job: dict[str, Any], params: SamplingParams) -> int:
    """Answer requests as they arrive: each joins the batch at the next step."""
    pending, num_tokens = deque(enumerate(zip(job["arrivals_s"], job["prompts"], strict=True))), 0
    began = time.perf_counter()
    while pending or engine.has_work:
        while pending and pending[0][1][0] <= time.perf_counter() - began:
            number, (_, prompt) = pending.popleft()
            engine.add(Request(str(number), prompt, params))
        if engine.has_work:
            num_tokens += len(engine.step().outputs)
        else:
            time.sleep(max(0.0, pending[0][1][0] + began - time.perf_counter()))
    return num_tokens


print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    params = SamplingParams(max_tokens=job["output"], temperature=0.0)
    began = time.perf_counter()
    num_tokens = (answer_arrivals if "arrivals_s" in job else answer_batch)(job, params)
    seconds = time.perf_counter() - began
    assert num_tokens == len(job["prompts"]) * job["output"]
    print(json.dumps({"seconds": seconds}), flush=True)
