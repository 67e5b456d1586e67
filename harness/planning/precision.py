"""Named precisions of weights and KV cache, with their true bits: codes and scales."""

from collections.abc import Mapping

import msgspec

from harness.errors import BadPlan


class Precision(msgspec.Struct, frozen=True):
    """Storage of weights.

    Attributes:
        name: as in ``--precision``.
        weight_bits: of one weight of a matrix, its share of scales included.
        compute: data type of the products. Formats that only store weights compute in bf16.
        end_bits: of one weight of embedding and output matrix, which quantisers leave alone.
        layout: codes and scales in words.
    """

    name: str
    weight_bits: float
    compute: str
    end_bits: float
    layout: str


class CachePrecision(msgspec.Struct, frozen=True):
    """Storage of the KV cache.

    Attributes:
        name: as in ``--kv``.
        bits: of one element.
        scale_bits: of the scale, and zero point, of one vector of one head.
    """

    name: str
    bits: float
    scale_bits: float = 0


PRECISIONS: Mapping[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("fp32", 32, "fp32", 32, "float32"),
        Precision("bf16", 16, "bf16", 16, "bfloat16"),
        Precision("fp16", 16, "bf16", 16, "float16"),
        Precision("fp8", 8, "fp8", 16, "E4M3 weights and activations; scales of rows are left out"),
        Precision("w8a8", 8, "int8", 16, "int8 weights and activations; scales of rows are left out"),
        Precision("int8", 8, "bf16", 16, "int8 weights; scales of rows are left out"),
        Precision("q8_0", 8.5, "bf16", 8.5, "GGUF: 32 int8 codes and a float16 scale; all matrices"),
        Precision("int4", 4.125, "bf16", 16, "4-bit codes in groups of 128 with a bfloat16 scale (GPTQ, symmetric)"),
        Precision("int4-zp", 4.15625, "bf16", 16, "the same with a 4-bit zero point (AWQ)"),
        Precision("nf4", 4.127, "bf16", 16, "bitsandbytes: groups of 64, scales in 8 bits (QLoRA, 2305.14314)"),
        Precision("mxfp4", 4.25, "bf16", 16, "OCP MX: 32 E2M1 codes and an E8M0 scale"),
        Precision("q4_0", 4.5, "bf16", 4.5, "GGUF: 32 4-bit codes and a float16 scale; all matrices"),
    )
}
CACHES: Mapping[str, CachePrecision] = {
    cache.name: cache
    for cache in (
        CachePrecision("fp32", 32),
        CachePrecision("bf16", 16),
        CachePrecision("fp8", 8),
        CachePrecision("int8", 8, 16),
        CachePrecision("int4", 4, 32),
    )
}


def precision_named(name: str) -> Precision:
    """Look up a precision of weights.

    Raises:
        BadPlan: it is unknown.
    """
    if name not in PRECISIONS:
        raise BadPlan(f"unknown precision '{name}'; known: {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def cache_named(name: str) -> CachePrecision:
    """Look up a precision of the KV cache.

    Raises:
        BadPlan: it is unknown.
    """
    if name not in CACHES:
        raise BadPlan(f"unknown precision of the KV cache '{name}'; known: {', '.join(CACHES)}")
    return CACHES[name]
