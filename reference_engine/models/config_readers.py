"""Reads config.json into the config of its family.

Imports no torch, like `shapes` and `costs`: a machine that only plans does not need it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from bakeoff.reference_engine.core.model_config import (
    CachedVectors,
    ModelConfig,
    RopeScaling,
    check_options,
    common_fields,
    layer_windows,
    rope_parameters,
    rope_scaling,
    whole,
    yarn_length,
)
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.models.names import LLAMA_PARTS

_DEEPSEEK_V2_DEFAULTS: Mapping[str, Any] = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
}  # fmt: skip
_DEEPSEEK_V3_DEFAULTS: Mapping[str, Any] = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "max_position_embeddings": 4096,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
_GEMMA2_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 256000, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "sliding_window": 4096, "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
}  # fmt: skip
_GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
}  # fmt: skip
_GPT_OSS_YARN: Mapping[str, Any] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_GPT_OSS_DEFAULTS: Mapping[str, Any] = {
    "num_local_experts": 128, "vocab_size": 201088, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "sliding_window": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000.0,
    "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
}  # fmt: skip
_MISTRAL_DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}
_MIXTRAL_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
_PHI3_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
_QWEN2_MOE_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28, "decoder_sparse_step": 1,
    "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
}  # fmt: skip
_QWEN3_MOE_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4, "max_position_embeddings": 32768, "sliding_window": 4096, "decoder_sparse_step": 1,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip
_SMOLLM3_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6, "tie_word_embeddings": True,
    "no_rope_layer_interval": 4,
}  # fmt: skip

_GEMMA_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (False, None),
}  # fmt: skip
_FULL, _SLIDING = "full_attention", "sliding_attention"


class MoeNames(NamedTuple):
    """How checkpoints of a family name the parts of a layer with experts.

    Attributes:
        block: prefix of all of them, within the layer.
        router: the router's matrix.
        parts: an expert's gate, up and down matrices.
        shared: the network that all tokens go through.
    """

    block: str = "mlp."
    router: str = "gate"
    parts: tuple[str, str, str] = LLAMA_PARTS
    shared: str = "shared_expert"


_USUAL_NAMES = MoeNames()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(ModelConfig):
    """Config of a decoder with experts.

    Attributes:
        num_experts: experts per layer.
        num_experts_per_tok: experts per token.
        moe_intermediate_size: intermediate size of an expert.
        norm_topk_prob: whether the chosen experts' probabilities are normalised to sum to 1.
        dense_layers: indices of layers without experts.
        routed_scaling_factor: factor on the sum of the experts.
        n_group: groups of consecutive experts.
        topk_group: groups to choose from: those with the best expert, or, with sigmoid, the best two.
        scoring_func: from the router's results to the experts' shares. With sigmoid a stored correction is added to
            shares, but only to choose by them (arXiv 2408.15664).
        router_bias: whether the router has a bias.
        expert_bias: whether the experts' matrices have biases.
        shared_width: columns of a network beside the experts, which all tokens go through; 0 for none.
        shared_gate: whether a token's result of that network is multiplied by a number between 0 and 1.
        names: of the parts of a layer with experts.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    dense_layers: frozenset[int] = frozenset()
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    expert_bias: bool = False
    shared_width: int = 0
    shared_gate: bool = False
    names: MoeNames = _USUAL_NAMES

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        choice = self.num_experts // self.n_group * self.topk_group
        if self.num_experts % self.n_group or not 1 <= self.num_experts_per_tok <= choice:
            raise CheckpointError(
                f"{self.num_experts_per_tok} experts per token cannot be chosen from {self.topk_group} of "
                f"{self.n_group} groups of {self.num_experts} experts: the checkpoint's config is damaged, fetch it "
                f"again"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(MoeConfig):
    """Config of DeepSeek-V2 and V3; `head_dim` is the size of the rotated part of queries and keys.

    Attributes:
        kv_lora_rank: elements of the latent of keys and values.
        q_lora_rank: elements of the latent of queries; None without one.
        qk_nope_head_dim: elements of a head's query and key that are not rotated.
        v_head_dim: elements of a head's value.
        attention_scale: factor on attention scores.
        rope_interleave: whether rotated pairs are stored as neighbours, not as halves.
    """

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    v_head_dim: int
    attention_scale: float
    rope_interleave: bool = True

    @property
    def cached_vectors(self) -> CachedVectors:
        """One vector per token: the latent, which is the value too, and the rotated part of the key."""
        return CachedVectors(1, self.kv_lora_rank + self.head_dim, self.kv_lora_rank, value_in_key=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(ModelConfig):
    """Config of Gemma 2 and 3.

    Attributes:
        query_pre_attn_scalar: attention scores are divided by its square root.
        local_rope_theta: `rope_theta` of layers with a window; None if all layers share one.
        local_rope_scaling: `rope_scaling` of layers with a window.
        attn_logit_softcapping: bound of attention scores, see `Scoring`; None for none.
        final_logit_softcapping: the same of logits.
    """

    query_pre_attn_scalar: float
    local_rope_theta: float | None = None
    local_rope_scaling: RopeScaling | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(MoeConfig):
    """Config of gpt-oss.

    Attributes:
        swiglu_alpha: gain of the sigmoid in the experts' activation.
        swiglu_limit: bound of the activation's inputs.
    """

    swiglu_alpha: float
    swiglu_limit: float


def read_llama(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Pre-norm decoder with grouped queries; `cla_factor` layers may share a cache."""
    cla_factor = whole(raw, "cla_factor", 1)
    if cla_factor < 1:
        raise CheckpointError(f"{where}: cla_factor {cla_factor} must be at least 1")
    return ModelConfig(
        **common_fields(raw, where),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        cla_factor=cla_factor,
    )


def read_mistral(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Llama with a sliding window in every layer."""
    raw = {**_MISTRAL_DEFAULTS, **raw}
    return ModelConfig(**common_fields(raw, where), windows=layer_windows(raw, where, raw["sliding_window"]))


def read_mixtral(raw: Mapping[str, Any], where: str) -> MoeConfig:
    """Mistral with experts in every layer."""
    raw = {**_MIXTRAL_DEFAULTS, **raw}
    return MoeConfig(
        **common_fields(raw, where),
        windows=layer_windows(raw, where, raw.get("sliding_window")),
        num_experts=whole(raw, "num_local_experts"),
        num_experts_per_tok=whole(raw, "num_experts_per_tok"),
        moe_intermediate_size=whole(raw, "intermediate_size"),
        norm_topk_prob=True,
        names=MoeNames("block_sparse_moe.", "gate", ("w1", "w3", "w2")),
    )


def read_phi3(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Fused projections, partly rotated heads, longrope."""
    raw = {**_PHI3_DEFAULTS, **raw}
    rope = rope_parameters(raw)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    kind = "longrope" if kind in ("su", "yarn") else kind  # earlier names in this family
    check_options({"rope scaling": kind}, where, **{"rope scaling": ("default", "longrope")})
    check_options(raw, where, attention_bias=(False,))
    return ModelConfig(
        **common_fields({**raw, "rope_parameters": {**rope, "rope_type": kind}}, where, partly_rotated=True),
        windows=layer_windows(raw, where, raw.get("sliding_window")),
    )


def read_qwen2(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Llama with biases of queries, keys and values."""
    raw = {"max_position_embeddings": 32768, **raw}
    return ModelConfig(**common_fields(raw, where), qkv_bias=True, windows=_qwen_windows(raw, where))


def read_qwen3(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Llama with norms of queries and keys."""
    raw = {"max_position_embeddings": 32768, "head_dim": 128, **raw}
    return ModelConfig(
        **common_fields(raw, where),
        attention_bias=bool(raw.get("attention_bias", False)),
        qk_norm=True,
        windows=_qwen_windows(raw, where),
    )


def read_smollm3(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Llama with layers that do not rotate."""
    raw = {**_SMOLLM3_DEFAULTS, **raw}
    interval, layers = whole(raw, "no_rope_layer_interval"), range(whole(raw, "num_hidden_layers"))
    rotates = raw.get("no_rope_layers") or [(index + 1) % interval for index in layers]  # 0 where none is, as stored
    unrotated = frozenset(index for index in layers if not rotates[index])
    window = _enabled_window(raw)
    sliding = [window is not None and index in unrotated for index in layers]
    return ModelConfig(
        **common_fields(raw, where),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        windows=layer_windows(raw, where, window, sliding),
        unrotated_layers=unrotated,
    )


def read_qwen2_moe(raw: Mapping[str, Any], where: str) -> MoeConfig:
    """Qwen2 with experts and a gated shared one."""
    raw = {**_QWEN2_MOE_DEFAULTS, **raw}
    window = _enabled_window(raw)
    last = whole(raw, "max_window_layers")
    sliding = [
        window is not None and index % 2 == 0 and index < last for index in range(whole(raw, "num_hidden_layers"))
    ]
    return MoeConfig(
        **common_fields(raw, where),
        qkv_bias=bool(raw.get("qkv_bias", True)),
        windows=layer_windows(raw, where, window, sliding),
        num_experts=whole(raw, "num_experts"),
        num_experts_per_tok=whole(raw, "num_experts_per_tok"),
        moe_intermediate_size=whole(raw, "moe_intermediate_size"),
        norm_topk_prob=bool(raw.get("norm_topk_prob", False)),
        dense_layers=_dense_layers(raw),
        shared_width=whole(raw, "shared_expert_intermediate_size"),
        shared_gate=True,
    )


def read_qwen3_moe(raw: Mapping[str, Any], where: str) -> MoeConfig:
    """Qwen3 with experts."""
    raw = {**_QWEN3_MOE_DEFAULTS, **raw}
    return MoeConfig(
        **common_fields(raw, where),
        attention_bias=bool(raw.get("attention_bias", False)),
        qk_norm=True,
        windows=layer_windows(raw, where, _enabled_window(raw)),
        num_experts=whole(raw, "num_local_experts" if raw.get("num_local_experts") else "num_experts"),
        num_experts_per_tok=whole(raw, "num_experts_per_tok"),
        moe_intermediate_size=whole(raw, "moe_intermediate_size"),
        norm_topk_prob=bool(raw.get("norm_topk_prob", False)),
        dense_layers=_dense_layers(raw),
    )


def read_gpt_oss(raw: Mapping[str, Any], where: str) -> GptOssConfig:
    """Experts with biases and a clamped gate; every second layer has a window."""
    raw = {**_GPT_OSS_DEFAULTS, **raw}
    if not rope_parameters(raw):
        raw = {**raw, "rope_parameters": _GPT_OSS_YARN}
    sliding = [index % 2 == 0 for index in range(whole(raw, "num_hidden_layers"))]
    return GptOssConfig(
        **common_fields(raw, where),
        attention_bias=bool(raw.get("attention_bias", True)),
        windows=layer_windows(raw, where, raw["sliding_window"], sliding),
        num_experts=whole(raw, "num_local_experts"),
        num_experts_per_tok=whole(raw, "num_experts_per_tok"),
        moe_intermediate_size=whole(raw, "intermediate_size"),
        norm_topk_prob=True,
        router_bias=True,
        expert_bias=True,
        names=MoeNames(router="router"),
        swiglu_alpha=float(raw["swiglu_alpha"]),
        swiglu_limit=float(raw["swiglu_limit"]),
    )


def read_gemma2(raw: Mapping[str, Any], where: str) -> GemmaConfig:
    """Norms before and after each part, bounded scores and logits; every second layer has a window."""
    raw = {**_GEMMA2_DEFAULTS, **raw}
    check_options(raw, where, **_GEMMA_OPTIONS)
    sliding = [index % 2 == 0 for index in range(whole(raw, "num_hidden_layers"))]
    return GemmaConfig(
        **common_fields({**raw, "hidden_act": "silu"}, where),
        attention_bias=bool(raw.get("attention_bias", False)),
        windows=layer_windows(raw, where, raw["sliding_window"], sliding),
        norm_offset=1.0,
        query_pre_attn_scalar=float(raw["query_pre_attn_scalar"]),
        attn_logit_softcapping=_soft_cap(raw, "attn_logit_softcapping"),
        final_logit_softcapping=_soft_cap(raw, "final_logit_softcapping"),
    )


def read_gemma3_wrapper(raw: Mapping[str, Any], where: str) -> GemmaConfig:
    """The text decoder of a model that also takes images."""
    outer = {name: raw[name] for name in ("eos_token_id", "bos_token_id", "dtype", "torch_dtype") if raw.get(name)}
    return read_gemma3({**raw["text_config"], **outer, "model_type": "gemma3_text"}, where)


def read_gemma3(raw: Mapping[str, Any], where: str) -> GemmaConfig:
    """Gemma 2 with norms of queries and keys in place of bounds, and a rotation of its own in layers with a window."""
    raw = {**_GEMMA3_DEFAULTS, **raw}
    check_options(raw, where, **_GEMMA_OPTIONS, attn_logit_softcapping=(None,), final_logit_softcapping=(None,))
    full, local = _ropes(raw)
    pattern = whole(raw, "sliding_window_pattern")
    sliding = [(index + 1) % pattern != 0 for index in range(whole(raw, "num_hidden_layers"))]
    common = common_fields({**raw, "rope_parameters": full, "hidden_act": "silu"}, where)
    return GemmaConfig(
        **common,
        attention_bias=bool(raw.get("attention_bias", False)),
        qk_norm=True,
        windows=layer_windows(raw, where, raw["sliding_window"], sliding),
        norm_offset=1.0,
        query_pre_attn_scalar=float(raw["query_pre_attn_scalar"]),
        local_rope_theta=float(local["rope_theta"]),
        local_rope_scaling=rope_scaling(local, raw, where),
    )


def read_deepseek_v2(raw: Mapping[str, Any], where: str) -> DeepseekConfig:
    """Latent attention (MLA), experts chosen by softmax, in groups."""
    raw = {**_DEEPSEEK_V2_DEFAULTS, **raw}
    check_options(
        raw,
        where,
        topk_method=("greedy", "group_limited_greedy"),
        scoring_func=("softmax",),
        norm_topk_prob=(False, None),
        moe_layer_freq=(1,),
        mlp_bias=(False,),
    )
    grouped = raw.get("topk_method") == "group_limited_greedy"
    return DeepseekConfig(
        **_deepseek_fields(raw, where),
        norm_topk_prob=False,
        n_group=whole(raw, "n_group") if grouped else 1,
        topk_group=whole(raw, "topk_group") if grouped else 1,
    )


def read_deepseek_v3(raw: Mapping[str, Any], where: str) -> DeepseekConfig:
    """DeepSeek-V2 with experts chosen by biased sigmoids."""
    raw = {**_DEEPSEEK_V3_DEFAULTS, **raw}
    check_options(
        raw, where, topk_method=("noaux_tc",), scoring_func=("sigmoid",), moe_layer_freq=(1,), mlp_bias=(False,)
    )
    return DeepseekConfig(
        **_deepseek_fields(raw, where),
        norm_topk_prob=bool(raw.get("norm_topk_prob", True)),
        scoring_func="sigmoid",
        n_group=whole(raw, "n_group"),
        topk_group=whole(raw, "topk_group"),
        rope_interleave=bool(raw.get("rope_interleave", True)),
    )


def _deepseek_fields(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arguments of `DeepseekConfig` that V2 and V3 share."""
    plain, turned = whole(raw, "qk_nope_head_dim"), whole(raw, "qk_rope_head_dim")
    width = whole(raw, "moe_intermediate_size")
    return common_fields({**raw, "head_dim": turned}, where) | {
        "attention_bias": bool(raw.get("attention_bias", False)),
        "num_experts": whole(raw, "n_routed_experts"),
        "num_experts_per_tok": whole(raw, "num_experts_per_tok"),
        "moe_intermediate_size": width,
        "dense_layers": frozenset(range(whole(raw, "first_k_dense_replace"))),
        "routed_scaling_factor": float(raw.get("routed_scaling_factor", 1.0)),
        "shared_width": whole(raw, "n_shared_experts") * width,
        "names": MoeNames(shared="shared_experts"),
        "kv_lora_rank": whole(raw, "kv_lora_rank"),
        "q_lora_rank": None if raw["q_lora_rank"] is None else whole(raw, "q_lora_rank"),
        "qk_nope_head_dim": plain,
        "v_head_dim": whole(raw, "v_head_dim"),
        "attention_scale": (plain + turned) ** -0.5 * _yarn_scale(raw),
    }


def _dense_layers(raw: Mapping[str, Any]) -> frozenset[int]:
    """Qwen's layers without experts."""
    step, dense = whole(raw, "decoder_sparse_step"), raw.get("mlp_only_layers") or ()
    return frozenset(i for i in range(whole(raw, "num_hidden_layers")) if i in dense or (i + 1) % step)


def _soft_cap(raw: Mapping[str, Any], name: str) -> float | None:
    """A bound of scores or logits; None for none.

    Raises:
        ValueError: it is not positive.
    """
    cap = raw[name]
    if cap is not None and not 0 < cap < math.inf:
        raise ValueError(f"{name} {cap} is not positive")
    return None if cap is None else float(cap)


def _enabled_window(raw: Mapping[str, Any], default: int | None = None) -> int | None:
    """The window of a config in which it must be enabled, too."""
    return raw.get("sliding_window", default) if raw.get("use_sliding_window", False) else None


def _qwen_windows(raw: Mapping[str, Any], where: str) -> tuple[int | None, ...]:
    """Windows of this family: only if enabled, and only from layer max_window_layers on."""
    window = _enabled_window(raw, 4096)
    first = whole(raw, "max_window_layers", 28)
    sliding = [window is not None and index >= first for index in range(whole(raw, "num_hidden_layers"))]
    return layer_windows(raw, where, window, sliding)


def _ropes(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Rope parameters of full and of sliding layers: nested in new configs, flat in old ones."""
    nested = raw.get("rope_parameters") or {}
    theta, local_theta = raw.get("rope_theta", 1e6), raw.get("rope_local_base_freq", 1e4)
    full = {"rope_theta": theta, **(raw.get("rope_scaling") or {}), **(nested.get(_FULL) or {})}
    return full, {"rope_theta": local_theta, **(nested.get(_SLIDING) or {})}


def _yarn_scale(raw: Mapping[str, Any]) -> float:
    """YaRN's factor on attention scores if it scales all dimensions."""
    rope = rope_parameters(raw)
    return yarn_length(float(rope["factor"]), rope["mscale_all_dim"]) ** 2 if rope.get("mscale_all_dim") else 1.0


READERS: Mapping[str, Callable[[Mapping[str, Any], str], ModelConfig]] = {
    "deepseek_v2": read_deepseek_v2,
    "deepseek_v3": read_deepseek_v3,
    "gemma2": read_gemma2,
    "gemma3": read_gemma3_wrapper,
    "gemma3_text": read_gemma3,
    "gpt_oss": read_gpt_oss,
    "llama": read_llama,
    "mistral": read_mistral,
    "mixtral": read_mixtral,
    "phi3": read_phi3,
    "qwen2": read_qwen2,
    "qwen2_moe": read_qwen2_moe,
    "qwen3": read_qwen3,
    "qwen3_moe": read_qwen3_moe,
    "smollm3": read_smollm3,
}
"""By `model_type`. Each takes a decoded config.json and its path, for messages, and raises CheckpointError for options
that are not computed exactly."""


def config_from_hf(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Reads a decoded config.json (Transformers 4 and 5 spellings).

    Raises:
        CheckpointError: the family or an option is not supported, or a field is missing or has the wrong type.
    """
    read = READERS.get(str(raw.get("model_type")))
    if read is None:
        names = ", ".join(map(repr, READERS))
        raise CheckpointError(f"{where}: model_type {raw.get('model_type')!r} is not supported, these are: {names}")
    try:
        return read(raw, where)
    except KeyError as error:
        raise CheckpointError(f"{where}: the field {error} is missing; fetch the checkpoint again") from error
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: a field is not of its type or range ({error}); fetch the checkpoint again"
        ) from error
