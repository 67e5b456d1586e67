"""What a Llama-family checkpoint says about itself, read from Hugging Face's config.json or from GGUF metadata."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from reference_engine.errors import CheckpointError
from reference_engine.kv_cache.layout import CacheLayout, LayerLayout


@dataclasses.dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length the model was trained at.

    `linear` divides every frequency by `factor` (position interpolation, arXiv 2306.15595). `llama3` leaves short
    wavelengths alone, divides long ones and blends between (Llama 3.1 report, arXiv 2407.21783, and its released code).
    """

    kind: str  # "linear" or "llama3"
    factor: float
    low_freq_factor: float = 1.0  # llama3 only
    high_freq_factor: float = 4.0  # llama3 only
    original_max_position_embeddings: int = 8192  # tokens, llama3 only


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one decoder; field names follow Hugging Face's config.json where it has them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int  # tokens
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"  # of the stored weights

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}: the checkpoint's config is damaged, fetch it again"
            )

    @property
    def cache_layout(self) -> CacheLayout:
        """What the layers keep of each token."""
        layer = LayerLayout(self.num_key_value_heads, self.head_dim, self.head_dim)
        return CacheLayout((layer,) * self.num_hidden_layers)


def config_from_hf(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Reads a decoded config.json (Transformers 4 and 5 spellings).

    Raises:
        CheckpointError: for another architecture, activation or rope scaling than this engine computes exactly.
    """
    if raw.get("model_type") != "llama":
        raise CheckpointError(f"{where}: model_type {raw.get('model_type')!r} is not supported, only 'llama' is")
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act {raw['hidden_act']!r} is not supported, only 'silu' is")
    try:
        return _build(raw, where)
    except KeyError as error:
        raise CheckpointError(f"{where}: the field {error} is missing; fetch the checkpoint again") from error


def _build(raw: Mapping[str, Any], where: str) -> ModelConfig:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    heads = int(raw["num_attention_heads"])
    return ModelConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_hidden_layers=int(raw["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        max_position_embeddings=int(raw.get("max_position_embeddings", 2048)),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_scaling=_rope_scaling(rope, where),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        bos_token_id=raw.get("bos_token_id"),
        eos_token_ids=token_id_tuple(raw.get("eos_token_id")),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
    )


def token_id_tuple(value: int | list[int] | None) -> tuple[int, ...]:
    """Hugging Face writes end-of-sequence ids as nothing, one id, or a list; here they are always a tuple."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _rope_scaling(rope: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=float(rope["factor"]))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
        )
    raise CheckpointError(f"{where}: rope scaling {kind!r} is not supported, only 'linear' and 'llama3' are")


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The config.json that Transformers 5 reads back as the same model."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        rope |= {"rope_type": config.rope_scaling.kind, "factor": config.rope_scaling.factor}
    if config.rope_scaling is not None and config.rope_scaling.kind == "llama3":
        scaling = dataclasses.asdict(config.rope_scaling)
        del scaling["kind"]
        rope |= scaling
    fields = dataclasses.asdict(config)
    for ours in ("rope_theta", "rope_scaling", "eos_token_ids"):
        del fields[ours]
    eos = config.eos_token_ids
    return fields | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_parameters": rope,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None,
    }
