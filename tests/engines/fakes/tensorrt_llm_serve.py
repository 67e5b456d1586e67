"""A program that replaces ``trtllm-serve`` and accepts only its flags and the keys of its YAML file."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.engines.fakes.stage import Script, serve
from tests.engines.fakes.tensorrt_llm import TensorRtLlmFake

_KEYS = {
    "enable_iter_perf_stats", "enable_iter_req_stats", "iter_stats_max_iterations", "return_perf_metrics",
    "perf_metrics_max_requests", "stream_interval", "scheduler_config", "disable_overlap_scheduler",
    "cuda_graph_config", "attn_backend", "sampler_type", "kv_cache_config", "speculative_config",
}  # fmt: skip
_INNER = {
    "kv_cache_config": {"free_gpu_memory_fraction", "max_tokens", "tokens_per_block", "dtype", "enable_block_reuse"},
    "speculative_config": {"decoding_type", "max_draft_len", "speculative_model", "num_nextn_predict_layers"},
}


def main(argv: Sequence[str]) -> None:
    """``trtllm-serve``: check every flag and every key, print the result, load, serve."""
    flags = vars(_parser().parse_args(list(argv)))
    config = json.loads(Path(flags["config"]).read_text(encoding="utf-8")) if flags["config"] else {}  # JSON is YAML
    if unknown := [name for name in config if name not in _KEYS] + [
        name for part, keys in _INNER.items() for name in config.get(part, ()) if name not in keys
    ]:
        sys.exit(f"Extra inputs are not permitted: {unknown}")
    print(json.dumps({"flags": flags, "config": config}), flush=True)
    for _ in range(flags["tp_size"] * flags["pp_size"] - 1):
        deaf = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; signal.pause()"
        print("worker", subprocess.Popen([sys.executable, "-S", "-c", deaf]).pid, flush=True)
    fake = TensorRtLlmFake(Script(gap_s=0.002), name=Path(flags["model"]).name, **config)
    serve(fake, flags["port"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--host", default="localhost", choices=("127.0.0.1", "localhost"))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--backend", default="pytorch", choices=("pytorch", "tensorrt", "_autodeploy"))
    parser.add_argument("--config", "--extra_llm_api_options", dest="config")
    parser.add_argument("--enable_chunked_prefill", action="store_true")
    parser.add_argument("--trust_remote_code", action="store_true")
    parser.add_argument("--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction", type=float, default=0.9)
    for name in ("tp_size", "pp_size", "ep_size", "cp_size", "max_beam_width"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len", "num_postprocess_workers"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("tokenizer", "chat_template", "reasoning_parser", "log_level"):
        parser.add_argument(f"--{name}")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
