"""The reference engine as one side of `offline.py`: a line with a number of requests in, a line with seconds out."""

import json
import sys
import time

from reference_engine.config import EngineConfig
from reference_engine.offline import generate, load_engine
from reference_engine.request import SamplingParams

model, dtype, max_num_seqs = sys.argv[1], sys.argv[2], int(sys.argv[3])
engine = load_engine(
    EngineConfig(model=model, dtype=dtype, max_model_len=2048, max_num_seqs=max_num_seqs, enable_prefix_caching=False)
)
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    params = [SamplingParams(max_tokens=job["output"], temperature=0.0)] * len(job["prompts"])
    began = time.perf_counter()
    tokens = generate(engine, job["prompts"], params)
    seconds = time.perf_counter() - began
    assert all(len(one) == job["output"] for one in tokens)
    print(json.dumps({"seconds": seconds}), flush=True)
