"""Named precisions of weights and KV cache, with their true bits: codes and scales.

Kernels for fewer bits reach a smaller share of a device. ``read_share`` and ``product_share`` are relative to what bf16
reaches. On an H200 the reference engine and vLLM 0.24 read weights for one sequence at 0.80 and 0.80 (fp8), 0.77 (int8)
and 0.57 and 0.43 (int4) of bf16's bandwidth, and compute prompts in fp8 at 1.48 times bf16's speed, 0.74 of twice it
(docs/quantisation.md). The same shares are assumed for unmeasured formats of equal size.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from bakeoff.harness.errors import BadPlan

_BF16_BITS = 16


class Precision(msgspec.Struct, frozen=True):
    """Storage of weights.

    Attributes:
        name: as in ``--precision``.
        weight_bits: of one weight of a matrix, its share of scales included.
        compute: data type of the products. Formats that only store weights compute in bf16.
        end_bits: of one weight of embedding and output matrix, which quantisers do not change.
        layout: codes and scales in words.
        read_share: of the bandwidth at which bf16 weights are read, by vLLM's kernels.
        own_read_share: the same of the reference engine's kernels; None if it is equal.
        product_share: of the device's products per second in ``compute`` that bf16 reaches of its own.
    """

    name: str
    weight_bits: float
    compute: str
    end_bits: float
    layout: str
    read_share: float = 1.0
    own_read_share: float | None = None
    product_share: float = 1.0

    @property
    def converts(self) -> bool:
        """Whether weights are only stored in fewer bits, and converted before they multiply."""
        return self.weight_bits < _BF16_BITS and self.compute == "bf16"

    @property
    def without_shares(self) -> "Precision":
        """The same storage at the shares of an efficiency that was fitted in this precision."""
        return msgspec.structs.replace(self, read_share=1.0, own_read_share=None, product_share=1.0)

    def read_share_of(self, adapter: str) -> float:
        """Share of bf16's bandwidth at which an engine's kernels read the weights."""
        own = self.own_read_share if adapter == "reference" else None
        return self.read_share if own is None else own


class CachePrecision(msgspec.Struct, frozen=True):
    """Storage of the KV cache.

    Attributes:
        name: as in ``--kv``.
        bits: of one element, scales left out.
        scaled: kind of cache of the reference engine whose scales are counted; auto for no scales.
    """

    name: str
    bits: float
    scaled: Literal["auto", "int8", "int4"] = "auto"


_INT8, _W8A8, _FP8, _4_BITS = (0.77,), (0.77, None, 0.74), (0.80, None, 0.74), (0.43, 0.57)
"""`read_share`, `own_read_share` and `product_share`."""

PRECISIONS: Mapping[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("fp32", 32, "fp32", 32, "float32"),
        Precision("bf16", 16, "bf16", 16, "bfloat16"),
        Precision("fp16", 16, "bf16", 16, "float16"),
        Precision("fp8", 8, "fp8", 16, "E4M3 weights and activations; scales of rows are left out", *_FP8),
        Precision("w8a8", 8, "int8", 16, "int8 weights and activations; scales of rows are left out", *_W8A8),
        Precision("int8", 8, "bf16", 16, "int8 weights; scales of rows are left out", *_INT8),
        Precision("q8_0", 8.5, "bf16", 8.5, "GGUF: 32 int8 codes and a float16 scale; all matrices", *_INT8),
        Precision(
            "int4", 4.125, "bf16", 16, "4-bit codes in groups of 128 with a bfloat16 scale (GPTQ, symmetric)", *_4_BITS
        ),
        Precision("int4-zp", 4.15625, "bf16", 16, "the same with a 4-bit zero point (AWQ)", *_4_BITS),
        Precision(
            "nf4", 4.127, "bf16", 16, "bitsandbytes: groups of 64, scales in 8 bits (QLoRA, 2305.14314)", *_4_BITS
        ),
        Precision("mxfp4", 4.25, "bf16", 16, "OCP MX: 32 E2M1 codes and an E8M0 scale", *_4_BITS),
        Precision("q4_0", 4.5, "bf16", 4.5, "GGUF: 32 4-bit codes and a float16 scale; all matrices", *_4_BITS),
    )
}
CACHES: Mapping[str, CachePrecision] = {
    cache.name: cache
    for cache in (
        CachePrecision("fp32", 32),
        CachePrecision("bf16", 16),
        CachePrecision("fp8", 8),
        CachePrecision("int8", 8, "int8"),
        CachePrecision("int4", 4, "int4"),
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
