"""Names of methods, for settings and `--help`, which must start without torch."""

from typing import Literal

IntegerName = Literal["int8", "int8-zp", "int4", "int4-zp"]
"""Round to nearest; see `rounding`."""
MethodName = Literal[IntegerName, "fp8", "w8a8", "llm-int8", "nf4", "nf4-double", "mxfp4"]
"""Methods that need only the weight; see `methods`."""
RoundingName = Literal[IntegerName, "fp8", "llm-int8", "nf4", "nf4-double"]
"""The methods whose matrices a checkpoint can store."""
WrittenName = Literal[RoundingName, "gptq", "awq", "w8a8"]
"""Plus the methods that use activations; see `tools.quantisation_methods`."""
GgufName = Literal[
    "gguf-f32",
    "gguf-f16",
    "gguf-bf16",
    "gguf-q8_0",
    "gguf-q5_1",
    "gguf-q5_0",
    "gguf-q4_1",
    "gguf-q4_0",
    "gguf-q4_k_m",
    "gguf-mxfp4",
]
"""Types of the matrices of a GGUF file, or a mixture of them; see `tools.gguf_export`."""
KvCacheDtypeName = Literal["auto", "int8", "fp8", "int4"]
"""How the KV cache stores elements: as they are computed, or rounded as in `kv_cache.quantised`."""
