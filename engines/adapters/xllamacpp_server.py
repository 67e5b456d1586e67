"""llama-server without its program: the server of package ``xllamacpp``, told in llama-server's own flags.

Run as a script by the interpreter of the environment that holds the package, so it imports nothing of ours. The
package holds llama.cpp's whole HTTP server but no reader of a command line; this is one, with llama-server's defaults
where the package's differ. A flag that is not here is refused by name, never dropped.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

_AUTO_SLOTS = 4
"""llama-server's number of slots where none is given; they share one cache then."""
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
"""Flags with a value: the field that each sets, and how its word is read."""
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
_ENUMS = {
    "--cache-type-k": ("cache_type_k", "ggml_type", "GGML_TYPE_"),
    "--cache-type-v": ("cache_type_v", "ggml_type", "GGML_TYPE_"),
    "--split-mode": ("split_mode", "llama_split_mode", "LLAMA_SPLIT_MODE_"),
    "--flash-attn": ("flash_attn_type", "llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_"),
}
"""Flags whose words are members of an enum of the package."""
_ENUM_WORDS = {"on": "ENABLED", "off": "DISABLED"}
_SHORT = {
    "-m": "--model", "-a": "--alias", "-c": "--ctx-size", "-np": "--parallel", "-b": "--batch-size",
    "-ub": "--ubatch-size", "-t": "--threads", "-tb": "--threads-batch", "-ngl": "--gpu-layers",
    "-mg": "--main-gpu", "-sm": "--split-mode", "-ts": "--tensor-split", "-fa": "--flash-attn",
    "-ctk": "--cache-type-k", "-ctv": "--cache-type-v", "-cram": "--cache-ram", "-s": "--seed",
    "-md": "--spec-draft-model", "-lv": "--verbosity",
}  # fmt: skip
"""llama-server's short names."""


def parser() -> argparse.ArgumentParser:
    """Of the flags of llama-server that are known here."""
    made = argparse.ArgumentParser(prog="xllamacpp_server", description=__doc__, allow_abbrev=False, add_help=False)
    short = {long: name for name, long in _SHORT.items()}
    for name in (*_FIELDS, *_ENUMS, "--tensor-split", "--spec-type"):
        made.add_argument(*filter(None, (short.get(name), name)), dest=name, default=argparse.SUPPRESS)
    for name in _SWITCHES:
        made.add_argument(name, dest=name, action="store_true", default=argparse.SUPPRESS)
    return made


def parameters(package: Any, words: Sequence[str], key: str | None = None) -> Any:  # noqa: ANN401  (has no types)
    """llama.cpp's parameters for a command line.

    Args:
        package: ``xllamacpp``.
        words: the command line without the program.
        key: that requests must carry.

    Raises:
        SystemExit: a flag is not known here, or a value is none.
    """
    read = parser()
    given = vars(read.parse_args(words))
    made = package.CommonParams()
    if "--parallel" not in given:
        made.n_parallel, made.kv_unified = _AUTO_SLOTS, True
    if key:
        made.api_keys = [key]
    for name, word in given.items():
        try:
            _set(package, made, name, word)
        except (KeyError, ValueError, AttributeError) as error:
            read.error(f"{name} cannot be {word}: {error}")
    return made


def _set(package: Any, made: Any, name: str, word: str) -> None:  # noqa: ANN401
    if name in _SWITCHES:
        path, value = _SWITCHES[name]
    elif name in _ENUMS:
        path, kind, prefix = _ENUMS[name]
        value = getattr(package, kind)[prefix + _ENUM_WORDS.get(word, word.upper())]
    elif name == "--tensor-split":
        shares = [float(share) for share in word.split(",")]
        path, value = "tensor_split", shares + made.tensor_split[len(shares) :]
    elif name == "--spec-type":
        kinds = package.common_speculative_type
        path = "speculative.types"
        value = [kinds[f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"] for kind in word.split(",")]
    else:
        path, convert = _FIELDS[name]
        value = convert(word)
    *way, last = path.split(".")
    place = made
    for step in way:
        place = getattr(place, step)
    setattr(place, last, value)


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # before llama.cpp starts its threads, which inherit it
    package = importlib.import_module("xllamacpp")
    made = parameters(package, sys.argv[1:], os.environ.get("LLAMA_API_KEY"))
    server = package.Server(made)
    sys.stderr.write(f"listening on {server.listening_address}\n")
    signal.sigwait(stop)
    os._exit(0)  # the server's own end waits for requests under way


if __name__ == "__main__":
    main()
