"""The part of llama-server's command line that its fake checks: names, short names and allowed values."""

import argparse

_CACHE = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_SPEC = ("none", "draft-simple", "draft-eagle3", "draft-mtp", "ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")


def arguments() -> argparse.ArgumentParser:
    """The flags of b11434."""
    made = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    add = made.add_argument
    add("-m", "--model", default="model.gguf")
    add("-a", "--alias", default="")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("-c", "--ctx-size", type=int, default=0)
    add("-np", "--parallel", type=int, default=-1)
    add("-b", "--batch-size", type=int, default=2048)
    add("-ub", "--ubatch-size", type=int, default=512)
    add("-t", "--threads", type=int, default=-1)
    add("-tb", "--threads-batch", type=int, default=-1)
    add("--threads-http", type=int, default=-1)
    add("-ngl", "--gpu-layers", "--n-gpu-layers", default="auto")
    add("-sm", "--split-mode", choices=("none", "layer", "row", "tensor"), default="layer")
    add("-ts", "--tensor-split", default="")
    add("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto")
    add("-ctk", "--cache-type-k", choices=_CACHE, default="f16")
    add("-ctv", "--cache-type-v", choices=_CACHE, default="f16")
    add("--cache-ram", "-cram", type=int, default=8192)
    add("--no-cache-prompt", dest="cache_prompt", action="store_false")
    add("--fit", choices=("on", "off"), default="on")
    add("-s", "--seed", type=int, default=-1)
    add("--spec-type", choices=_SPEC, default="none")
    add("--spec-ngram-simple-size-n", type=int, default=12)
    add("--spec-ngram-simple-size-m", type=int, default=48)
    add("--spec-draft-n-max", type=int, default=3)
    add("-md", "--spec-draft-model", "--model-draft", default="")
    add("--metrics", action="store_true")
    add("--slots", action=argparse.BooleanOptionalAction, default=True)
    add("--no-webui", action="store_true")
    return made


def defaults(*words: str) -> argparse.Namespace:
    """A minimal command line and these words."""
    return arguments().parse_args(["--metrics", *words])
