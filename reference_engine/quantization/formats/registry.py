"""Formats of quantised checkpoints by the `quant_method` of their `quantization_config`; formats to write."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.quantization.formats.awq import AwqFormat, read_awq
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat, IntegerScheme
from bakeoff.reference_engine.quantization.formats.bitsandbytes import BitsAndBytes, read_bitsandbytes
from bakeoff.reference_engine.quantization.formats.compressed_tensors import (
    CompressedTensors,
    Group,
    read_compressed_tensors,
)
from bakeoff.reference_engine.quantization.formats.fp8 import read_fp8
from bakeoff.reference_engine.quantization.formats.gptq import GptqFormat, read_gptq
from bakeoff.reference_engine.quantization.formats.mxfp4 import Mxfp4Experts, read_mxfp4
from bakeoff.reference_engine.quantization.formats.schemes import Fp8Scheme, Int8Scheme, Nf4Scheme
from bakeoff.reference_engine.quantization.llm_int8 import LlmInt8Matrix

IntegerFormatName = Literal["gptq", "awq", "pack-quantized"]
"""Formats for schemes of whole numbers."""

_HEAD = "lm_head"

READERS: Mapping[str, Callable[[Mapping[str, Any], str], CheckpointFormat]] = {
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
}
"""Each takes a `quantization_config` and the path of its file, for messages, and raises CheckpointError for settings
that the engine does not compute exactly."""


_MXFP4 = "mxfp4"


def format_of(raw: Mapping[str, Any], where: str) -> CheckpointFormat | Mxfp4Experts | None:
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
        if method == _MXFP4:
            return read_mxfp4(config, where, str(raw.get("model_type")))
        if method not in READERS:
            names = ", ".join(map(repr, (*READERS, _MXFP4)))
            raise CheckpointError(f"{where}: quant_method {method!r} is not supported, these are: {names}")
        return READERS[method](config, where)
    except KeyError as error:
        raise CheckpointError(
            f"{where}: quantization_config has no field {error}; fetch the checkpoint again"
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: a field of quantization_config is not of its type ({error}); fetch the checkpoint again"
        ) from error


def integer_format(name: IntegerFormatName, scheme: IntegerScheme, plain: Sequence[str] = ()) -> CheckpointFormat:
    """A format for a checkpoint of whole numbers to write.

    Args:
        name: of the format.
        scheme: of all modules but the plain ones.
        plain: names of linear layers that stay plain, besides lm_head.

    Raises:
        ConfigError: the format, or a program that should read it, does not support the scheme.
    """
    if name == "awq":
        if scheme.bits != 4 or scheme.symmetric or scheme.act_order:
            raise ConfigError("the format awq is for 4 bits with zero points and no act-order; choose another")
        return AwqFormat(scheme.group_size, tuple(plain))
    if name == "gptq":
        exceptions = tuple((f"{re.escape(module)}$", None) for module in plain)
        version = "gptq" if scheme.symmetric else "gptq_v2"  # the first one has no zero point of 0
        return GptqFormat(scheme, version, exceptions=exceptions)
    if scheme.act_order:
        raise ConfigError(f"the format {name} has no act-order any more; write gptq")
    return CompressedTensors((Group(scheme, name),), (_HEAD, *plain))


def layered_format(schemes: Sequence[IntegerScheme | None], plain: Sequence[str] = ()) -> CompressedTensors:
    """A format with a scheme of its own for each layer.

    Args:
        schemes: of the linear layers of each decoder layer; None for layers that stay plain.
        plain: names of other linear layers that stay plain, besides lm_head.
    """

    def layers(scheme: IntegerScheme | None) -> str:
        numbers = "|".join(str(index) for index, layer_scheme in enumerate(schemes) if layer_scheme == scheme)
        return rf"re:model\.layers\.({numbers})\."

    groups = tuple(Group(scheme, targets=(layers(scheme),)) for scheme in dict.fromkeys(filter(None, schemes)))
    return CompressedTensors(groups, (_HEAD, *plain, *([layers(None)] if None in schemes else [])))


def format_for(scheme: Fp8Scheme | Int8Scheme | Nf4Scheme, plain: Sequence[str] = ()) -> CheckpointFormat:
    """The format for a checkpoint of another scheme to write; see `integer_format`."""
    match scheme:
        case Fp8Scheme():
            return CompressedTensors((Group(scheme, "float-quantized"),), (_HEAD, *plain))
        case Int8Scheme() if not issubclass(scheme.matrix, LlmInt8Matrix):
            return CompressedTensors((Group(scheme, "int-quantized"),), (_HEAD, *plain))
        case _:
            return BitsAndBytes(scheme, (_HEAD, *plain))
