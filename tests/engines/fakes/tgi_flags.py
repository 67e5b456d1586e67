"""The command line of the fake TGI: the launcher's flags, their variables and their effects."""

import argparse
import os
import sys

import msgspec

_NUMBERS = {
    "port": 3000, "prometheus-port": 9000, "num-shard": None, "speculate": None, "max-input-tokens": None,
    "max-total-tokens": None, "max-batch-prefill-tokens": None, "max-batch-total-tokens": None,
    "max-batch-size": None, "max-waiting-tokens": 20, "max-concurrent-requests": 128, "max-client-batch-size": 4,
    "max-best-of": 2, "max-stop-sequences": 4, "max-top-n-tokens": 5, "payload-limit": 2_000_000,
    "validation-workers": 2, "graceful-termination-timeout": 90, "master-port": 29500,
}  # fmt: skip
_SHARES = {"waiting-served-ratio": 0.3, "cuda-memory-fraction": 1.0}
_WORDS = {
    "model-id": "bigscience/bloom-560m", "revision": None, "tokenizer-config-path": None, "hostname": "0.0.0.0",
    "cuda-graphs": None, "api-key": None, "otlp-endpoint": None, "shard-uds-path": "/tmp/text-generation-server",
}  # fmt: skip
_CHOICES = {
    "sharded": ("true", "false"),
    "dtype": ("float16", "bfloat16"),
    "quantize": ("awq", "compressed-tensors", "eetq", "exl2", "gptq", "marlin", "bitsandbytes", "bitsandbytes-nf4",
                 "bitsandbytes-fp4", "fp8"),
    "kv-cache-dtype": ("fp8_e4m3fn", "fp8_e5m2"),
    "usage-stats": ("on", "off", "no-stack"),
}  # fmt: skip
_SWITCHES = ("json-output", "trust-remote-code", "enable-prefill-logprobs", "disable-grammar-support")
_DEFAULT_TOKENS = 4096


class Flags(msgspec.Struct):
    """The settings of the fake."""

    model_id: str
    port: int
    api_key: str | None
    max_concurrent_requests: int
    max_client_batch_size: int
    validation_workers: int
    max_input_tokens: int
    max_total_tokens: int
    budget: int
    """``max_batch_total_tokens``, which the warm-up determines if it is not given."""
    given: dict
    """All parsed flags."""


def arguments() -> argparse.ArgumentParser:
    """An unknown flag ends the program, as in the real launcher."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for kind, names in ((int, _NUMBERS), (float, _SHARES), (str, _WORDS)):
        for name, default in names.items():
            parser.add_argument(f"--{name}", type=kind, default=_variable(name, default))
    for name, choices in _CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices, default=_variable(name, None))
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    return parser


def _variable(name: str, default: object) -> object:
    """The flag's variable, except for a name that every shell defines."""
    return default if name == "hostname" else os.environ.get(name.upper().replace("-", "_"), default)


def resolved(given: argparse.Namespace) -> Flags:
    """The launcher's defaults and refusals."""
    longest = given.max_input_tokens or _DEFAULT_TOKENS - 1
    whole = given.max_total_tokens or _DEFAULT_TOKENS
    if longest >= whole:
        sys.exit('Error: ArgumentValidation("`max_input_tokens must be < `max_total_tokens`")')
    if given.dtype and given.quantize:
        sys.exit('Error: ArgumentValidation("`dtype` cannot be used with `quantize`")')
    return Flags(
        model_id=given.model_id,
        port=given.port,
        api_key=given.api_key,
        max_concurrent_requests=given.max_concurrent_requests,
        max_client_batch_size=given.max_client_batch_size,
        validation_workers=given.validation_workers,
        max_input_tokens=longest,
        max_total_tokens=whole,
        budget=given.max_batch_total_tokens or 16 * whole,
        given=vars(given),
    )
