"""Real vLLM as one side of `offline.py`, run by the interpreter of its own environment."""

import json
import os
import sys
import time

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM prints to standard output


def main() -> None:
    from vllm import LLM, SamplingParams  # noqa: PLC0415  (prints while it is imported)

    model, dtype, max_num_seqs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    llm = LLM(
        model=model, dtype=dtype, max_model_len=2048, max_num_seqs=max_num_seqs, enable_prefix_caching=False, seed=0
    )
    print("ready", file=OUT, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        params = SamplingParams(max_tokens=job["output"], temperature=0.0, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
        began = time.perf_counter()
        answers = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert all(len(answer.outputs[0].token_ids) == job["output"] for answer in answers)
        print(json.dumps({"seconds": seconds}), file=OUT, flush=True)


if __name__ == "__main__":
    main()
