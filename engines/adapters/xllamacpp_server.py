"""Command line of llama-server for the HTTP server in the package ``xllamacpp``.

The package contains llama.cpp's HTTP server but not its command line. This script parses llama-server's flags, uses its
defaults where the package's differ, and refuses unknown flags. It runs in the interpreter of the package's environment,
so it must not import other modules of Bakeoff. Source: https://github.com/xorbitsai/xllamacpp.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

_AUTO_SLOTS = 4
"""llama-server's default number of slots; by default they share one cache."""
_ON_OFF = {"on": True, "off": False}
_GPU_LAYERS = {"auto": -1, "all": -2}
_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "--host": ("hostnames", lambda word: [word]),
    "--port": ("port", int),
    "--model": ("model.path", str),
    "--alias": ("model_alias", lambda word: {word}),
    "--ctx-size": ("n_ctx", int),
    "--parallel": ("n_parallel", int),
    "--batch-size": ("n_batch", int),
    "--ubatch-size": ("n_ubatch", int),
    "--threads": ("cpuparams.n_threads", int),
    "--threads-batch": ("cpuparams_batch.n_threads", int),
    "--threads-http": ("n_threads_http", int),
    "--gpu-layers": ("n_gpu_layers", lambda word: _GPU_LAYERS.get(word) or int(word)),
    "--main-gpu": ("main_gpu", int),
    "--cache-ram": ("cache_ram_mib", int),
    "--cache-reuse": ("n_cache_reuse", int),
    "--slot-prompt-similarity": ("slot_prompt_similarity", float),
    "--sse-ping-interval": ("sse_ping_interval", int),
    "--timeout": ("timeout_read", int),
    "--seed": ("sampling.seed", int),
    "--verbosity": ("verbosity", int),
    "--fit": ("fit_params", _ON_OFF.__getitem__),
    "--spec-draft-model": ("speculative.draft.mparams.path", str),
    "--spec-draft-n-max": ("speculative.draft.n_max", int),
    "--spec-draft-n-min": ("speculative.draft.n_min", int),
    "--spec-draft-p-min": ("speculative.draft.p_min", float),
    "--spec-ngram-simple-size-n": ("speculative.ngram_simple.size_n", int),
    "--spec-ngram-simple-size-m": ("speculative.ngram_simple.size_m", int),
    "--spec-ngram-simple-min-hits": ("speculative.ngram_simple.min_hits", int),
}
"""Flags with a value: the field that each sets, and the conversion of its argument."""
_SWITCHES = {
    "--metrics": ("endpoint_metrics", True),
    "--slots": ("endpoint_slots", True),
    "--no-slots": ("endpoint_slots", False),
    "--no-webui": ("ui", False),
    "--no-cache-prompt": ("cache_prompt", False),
    "--no-warmup": ("warmup", False),
    "--kv-unified": ("kv_unified", True),
    "--no-kv-unified": ("kv_unified", False),
    "--ignore-eos": ("sampling.ignore_eos", True),
}
"""Flags without a value: the field that each sets, and the value."""
_ENUMS = {
    "--cache-type-k": ("cache_type_k", "ggml_type", "GGML_TYPE_"),
    "--cache-type-v": ("cache_type_v", "ggml_type", "GGML_TYPE_"),
    "--split-mode": ("split_mode", "llama_split_mode", "LLAMA_SPLIT_MODE_"),
    "--flash-attn": ("flash_attn_type", "llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_"),
}
"""Flags whose arguments are members of an enum: field, enum and prefix of its members."""
_ENUM_WORDS = {"on": "ENABLED", "off": "DISABLED"}
_SHORT = {
    "-m": "--model", "-a": "--alias", "-c": "--ctx-size", "-np": "--parallel", "-b": "--batch-size",
    "-ub": "--ubatch-size", "-t": "--threads", "-tb": "--threads-batch", "-ngl": "--gpu-layers",
    "-mg": "--main-gpu", "-sm": "--split-mode", "-ts": "--tensor-split", "-fa": "--flash-attn",
    "-ctk": "--cache-type-k", "-ctv": "--cache-type-v", "-cram": "--cache-ram", "-s": "--seed",
    "-md": "--spec-draft-model", "-lv": "--verbosity",
}  # fmt: skip
"""llama-server's short flags."""


def parser() -> argparse.ArgumentParser:
    """Parser of the supported flags of llama-server."""
    flags = argparse.ArgumentParser(prog="xllamacpp_server", description=__doc__, allow_abbrev=False, add_help=False)
    short = {long: name for name, long in _SHORT.items()}
    for name in (*_FIELDS, *_ENUMS, "--tensor-split", "--spec-type"):
        flags.add_argument(*filter(None, (short.get(name), name)), dest=name, default=argparse.SUPPRESS)
    for name in _SWITCHES:
        flags.add_argument(name, dest=name, action="store_true", default=argparse.SUPPRESS)
    return flags


def parameters(package: Any, words: Sequence[str], key: str | None = None) -> Any:  # noqa: ANN401  (the package has no types)
    """llama.cpp's parameters for a command line.

    Args:
        package: ``xllamacpp``.
        words: the command line without the program.
        key: API key that requests must carry; None for no key.

    Raises:
        SystemExit: a flag is not supported, or its value is invalid.
    """
    arguments = parser()
    settings = vars(arguments.parse_args(words))
    params = package.CommonParams()
    if "--parallel" not in settings:
        params.n_parallel, params.kv_unified = _AUTO_SLOTS, True
    if key:
        params.api_keys = [key]
    for name, word in settings.items():
        try:
            _set(package, params, name, word)
        except (KeyError, ValueError, AttributeError) as error:
            arguments.error(f"{name} cannot be {word}: {error}")
    return params


def _set(package: Any, params: Any, name: str, word: str) -> None:  # noqa: ANN401
    if name in _SWITCHES:
        path, value = _SWITCHES[name]
    elif name in _ENUMS:
        path, kind, prefix = _ENUMS[name]
        value = getattr(package, kind)[prefix + _ENUM_WORDS.get(word, word.upper())]
    elif name == "--tensor-split":
        shares = [float(share) for share in word.split(",")]
        path, value = "tensor_split", shares + params.tensor_split[len(shares) :]
    elif name == "--spec-type":
        kinds = package.common_speculative_type
        path = "speculative.types"
        value = [kinds[f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"] for kind in word.split(",")]
    else:
        path, convert = _FIELDS[name]
        value = convert(word)
    *parents, field = path.split(".")
    target = params
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, field, value)


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # before llama.cpp starts its threads, which inherit it
    package = importlib.import_module("xllamacpp")
    params = parameters(package, sys.argv[1:], os.environ.get("LLAMA_API_KEY"))
    server = package.Server(params)
    sys.stderr.write(f"listening on {server.listening_address}\n")
    signal.sigwait(stop)
    os._exit(0)  # the server's own shutdown waits for running requests


if __name__ == "__main__":
    main()
