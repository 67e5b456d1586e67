"""Formats of quantised checkpoints by the `quant_method` of their `quantization_config`, and what can be written."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from reference_engine.errors import CheckpointError, ConfigError
from reference_engine.quantization.formats.awq import AwqFormat, read_awq
from reference_engine.quantization.formats.base import CheckpointFormat, IntegerScheme
from reference_engine.quantization.formats.compressed_tensors import CompressedTensors, Group, read_compressed_tensors
from reference_engine.quantization.formats.gptq import GptqFormat, read_gptq

WrittenName = Literal["gptq", "awq", "pack-quantized", "int-quantized"]
"""Formats that can be written; the last two are compressed-tensors'."""

READERS: Mapping[str, Callable[[Mapping[str, Any], str], CheckpointFormat]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "gptq": read_gptq,
}
"""Each takes a `quantization_config` and the path of its file, for messages, and raises CheckpointError for what is not
computed exactly."""


def format_of(raw: Mapping[str, Any], where: str) -> CheckpointFormat | None:
    """The format of a checkpoint; None if it is plain.

    Args:
        raw: config.json.
        where: its path, for messages.

    Raises:
        CheckpointError: the method or a setting is not supported, or a field is missing or has the wrong type.
    """
    config = raw.get("quantization_config") or raw.get("compression_config")
    if config is None:
        return None
    try:
        method = config.get("quant_method")
        if method not in READERS:
            known = ", ".join(map(repr, READERS))
            raise CheckpointError(f"{where}: quant_method {method!r} is not supported, these are: {known}")
        return READERS[method](config, where)
    except KeyError as error:
        raise CheckpointError(
            f"{where}: quantization_config has no field {error}; fetch the checkpoint again"
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: a field of quantization_config is not of its type ({error}); fetch the checkpoint again"
        ) from error


def new_format(name: WrittenName, scheme: IntegerScheme, plain: Sequence[str] = ()) -> CheckpointFormat:
    """A format to write a checkpoint in.

    Args:
        name: of the format.
        scheme: of all modules but the plain ones.
        plain: names of linear layers that stay plain, besides lm_head.

    Raises:
        ConfigError: the format, or a program that should read it, has no such scheme.
    """
    if name == "awq":
        _check(name, scheme, has_4_bits=True, has_zero_points=True)
        return AwqFormat(scheme.group_size, tuple(plain))
    if name == "gptq":
        exceptions = tuple((f"{re.escape(module)}$", None) for module in plain)
        version = "gptq" if scheme.symmetric else "gptq_v2"  # the first one has no zero point of 0
        return GptqFormat(scheme, version, exceptions=exceptions)
    if name == "int-quantized":
        _check(name, scheme, has_4_bits=False, has_zero_points=False)
    if scheme.act_order:
        raise ConfigError(f"the format {name} has no act-order any more; write gptq")
    return CompressedTensors((Group(scheme, name),), ("lm_head", *plain))


def _check(name: WrittenName, scheme: IntegerScheme, *, has_4_bits: bool, has_zero_points: bool) -> None:
    if (scheme.bits == 4) != has_4_bits or scheme.symmetric == has_zero_points or scheme.act_order:
        bits, zeros = 4 if has_4_bits else 8, "with" if has_zero_points else "without"
        raise ConfigError(f"the format {name} is for {bits} bits {zeros} zero points and no act-order; choose another")
