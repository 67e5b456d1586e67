"""The command line of the fake SGLang: the real server's flags that an experiment can set."""

import argparse


def arguments() -> argparse.ArgumentParser:
    """An unknown flag ends the program, as in the real server."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    for name in (
        "port", "tp-size", "pp-size", "context-length", "max-running-requests", "chunked-prefill-size", "page-size",
        "max-total-tokens", "max-prefill-tokens", "max-queued-requests", "random-seed", "speculative-num-steps",
        "speculative-eagle-topk", "speculative-num-draft-tokens", "cpu-offload-gb",
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--stream-interval", type=int, default=1)
    for name in ("mem-fraction-static", "schedule-conservativeness"):
        parser.add_argument(f"--{name}", type=float)
    for name in (
        "served-model-name", "quantization", "kv-cache-dtype", "schedule-policy", "attention-backend",
        "sampling-backend", "cuda-graph-backend-decode", "cuda-graph-backend-prefill", "log-level-http", "device",
        "speculative-draft-model-path",
    ):  # fmt: skip
        parser.add_argument(f"--{name}")
    parser.add_argument("--dtype", choices=["auto", "half", "float16", "bfloat16", "float", "float32"], default="auto")
    parser.add_argument("--sampling-defaults", choices=["openai", "model"], default="model")
    parser.add_argument("--speculative-algorithm", choices=["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"])
    for name in (
        "enable-metrics", "enable-cache-report", "disable-radix-cache", "enable-mixed-chunk",
        "disable-overlap-schedule", "incremental-streaming-output", "enable-deterministic-inference",
    ):  # fmt: skip
        parser.add_argument(f"--{name}", action="store_true")
    return parser
