"""The model config that all families share, and helpers to read config.json."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bakeoff.reference_engine.errors import CheckpointError

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
_DEFAULT_LENGTH = 2048  # tokens, for a config without max_position_embeddings


def _float_tuple(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))


_SCALINGS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "linear": {"factor": float},
    "dynamic": {"factor": float, "original_max_position_embeddings": int},
    "llama3": {
        "factor": float, "low_freq_factor": float, "high_freq_factor": float, "original_max_position_embeddings": int,
    },
    "yarn": {
        "factor": float, "beta_fast": float, "beta_slow": float, "truncate": bool, "attention_factor": float,
        "original_max_position_embeddings": int,
    },
    "longrope": {
        "factor": float, "short_factor": _float_tuple, "long_factor": _float_tuple, "attention_factor": float,
        "original_max_position_embeddings": int,
    },
}  # fmt: skip
"""Fields and types of each kind of rope scaling; config.json and `RopeScaling` use the same names."""


@dataclasses.dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies for contexts longer than those in training.

    `linear` divides every frequency by `factor` (position interpolation, arXiv 2306.15595). `llama3` leaves short
    wavelengths alone, divides long ones and blends between (Llama 3.1 report, arXiv 2407.21783, and its released code).
    `yarn` blends by the number of turns within the trained length and scales up queries and keys (arXiv 2309.00071).
    `dynamic` raises the base of the frequencies for sequences longer than the trained length (NTK-aware scaling, by
    bloc97 and emozilla). `longrope` divides each frequency by a searched factor, of one list up to the trained length
    and of another beyond, and scales up queries and keys (arXiv 2402.13753).

    Transformers lets `dynamic` and `longrope` depend on the longest position of the batch at each step, and keeps keys
    that earlier steps have rotated differently. Here the maximum length of the engine decides, once: answers depend
    neither on other requests nor on what the prefix cache holds. vLLM does the same for `longrope` (PR 27431).
    """

    kind: str  # a key of _SCALINGS
    factor: float
    low_freq_factor: float = 1.0  # llama3 only
    high_freq_factor: float = 4.0  # llama3 only
    original_max_position_embeddings: int = 8192  # trained length in tokens; all but linear
    beta_fast: float = 32.0  # turns, yarn only
    beta_slow: float = 1.0  # turns, yarn only
    truncate: bool = True  # yarn only: round the ends of the blend to whole dimensions
    attention_factor: float = 1.0  # yarn and longrope: factor on rotated vectors
    short_factor: tuple[float, ...] = ()  # longrope only: divisors of the frequencies up to the trained length
    long_factor: tuple[float, ...] = ()  # longrope only: beyond it


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one decoder; field names follow Hugging Face's config.json where possible."""

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
    attention_bias: bool = False  # on all projections of attention
    qkv_bias: bool = False  # on those to queries, keys and values only
    qk_norm: bool = False  # each head's query and key are normalised before rotation (arXiv 2010.04245)
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"  # of the stored weights
    model_type: str = "llama"  # names the family
    windows: tuple[
        int | None, ...
    ] = ()  # tokens that each layer attends to, None for all; () if all layers attend to all
    cla_factor: int = 1  # consecutive layers that share the first one's keys and values (arXiv:2405.12981)
    norm_offset: float = 0.0  # added to the stored weights of norms
    partial_rotary_factor: float = 1.0  # share of a head's elements, the first ones, that positions rotate
    unrotated_layers: frozenset[int] = frozenset()  # layers without positions (NoPE, arXiv 2305.19466)

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise CheckpointError(
                    f"{name} {getattr(self, name)} must be at least 1: the checkpoint's config is damaged, fetch it "
                    f"again"
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}: the checkpoint's config is damaged, fetch it again"
            )
        if self.rotary_dim < 2 or self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise CheckpointError(
                f"partial_rotary_factor {self.partial_rotary_factor:g} of head_dim {self.head_dim} is not an even "
                "number of elements: the checkpoint's config is damaged, fetch it again"
            )
        if self.windows and len(self.windows) != self.num_hidden_layers:
            raise CheckpointError(
                f"layer_types names {len(self.windows)} layers, num_hidden_layers {self.num_hidden_layers}: the "
                f"checkpoint's config is damaged, fetch it again"
            )

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence: with `yarn` and `dynamic` the trained length times the factor, as in vLLM.

        Configs of YaRN, such as Qwen2.5's, may give the trained length as `max_position_embeddings`.
        """
        scaling = self.rope_scaling
        if scaling is None or scaling.kind not in ("yarn", "dynamic"):
            return self.max_position_embeddings
        return max(self.max_position_embeddings, int(scaling.original_max_position_embeddings * scaling.factor))

    @property
    def default_length(self) -> int:
        """Maximum sequence length in tokens unless the user sets one.

        It is the trained length if the rotations of short sequences depend on it: those are then the same as in
        Transformers.
        """
        scaling = self.rope_scaling
        if scaling is None or scaling.kind not in ("dynamic", "longrope"):
            return self.max_length
        return min(self.max_length, scaling.original_max_position_embeddings)

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that positions rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def cached_vectors(self) -> "CachedVectors":
        """Cached vectors per token and layer; by default a key and a value per head."""
        return CachedVectors(self.num_key_value_heads, self.head_dim, self.head_dim)

    def shared_layer(self, index: int) -> int | None:
        """The earlier layer whose keys and values layer `index` uses; None if it caches its own."""
        return index - index % self.cla_factor if index % self.cla_factor else None


class CachedVectors(NamedTuple):
    """Vectors that one layer caches per token.

    Attributes:
        num_kv_heads: heads with cached vectors.
        key_dim: elements of one head's key.
        value_dim: elements of one head's value.
        value_in_key: the value is the first `value_dim` elements of the key.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    value_in_key: bool = False


def check_options(raw: Mapping[str, Any], where: str, **supported: Sequence[Any]) -> None:
    """Rejects options that the engine does not compute exactly.

    Args:
        raw: config.json, or a part of it.
        where: its path.
        supported: the supported values of each field; the first is the default of a missing field.

    Raises:
        CheckpointError: a field has another value.
    """
    for name, values in supported.items():
        if raw.get(name, values[0]) not in values:
            only = " or ".join(repr(value) for value in values if value is not None) or "a model without it"
            raise CheckpointError(f"{where}: {name} {raw[name]!r} is not supported, only {only} is")


def common_fields(raw: Mapping[str, Any], where: str, *, partly_rotated: bool = False) -> dict[str, Any]:
    """Arguments of `ModelConfig` that have the same names in config.json in all families.

    Args:
        raw: config.json.
        where: its path.
        partly_rotated: whether the family may rotate only a part of each head.

    Raises:
        CheckpointError: an option is not supported.
    """
    check_options(raw, where, hidden_act=("silu",))
    rope = rope_parameters(raw)
    if not partly_rotated:
        for place in (raw, rope):
            check_options(place, where, partial_rotary_factor=(None, 1.0))
    heads = whole(raw, "num_attention_heads")
    return {
        "vocab_size": whole(raw, "vocab_size"),
        "hidden_size": whole(raw, "hidden_size"),
        "intermediate_size": whole(raw, "intermediate_size"),
        "num_hidden_layers": whole(raw, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": whole(raw, "num_key_value_heads") if raw.get("num_key_value_heads") else heads,
        "head_dim": _head_dim(raw),
        "max_position_embeddings": whole(raw, "max_position_embeddings", _DEFAULT_LENGTH),
        "rms_norm_eps": float(raw.get("rms_norm_eps", 1e-6)),
        "rope_theta": float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        "rope_scaling": rope_scaling(rope, raw, where),
        "partial_rotary_factor": _rotated_share(rope, raw),
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_ids": token_id_tuple(raw.get("eos_token_id")),
        "dtype": str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        "model_type": str(raw["model_type"]),
    }


def rope_parameters(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that holds the parameters of rotation; Transformers 5 renamed it."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rotated_share(rope: Mapping[str, Any], raw: Mapping[str, Any]) -> float:
    return float(rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0)


def whole(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A field of config.json that counts something.

    Raises:
        KeyError: it is missing and has no default.
        ValueError: it is a fraction, which `int` would truncate.
    """
    value = raw[name] if default is None else raw.get(name, default)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{name} {value:g} is not a whole number")
    return int(value)


def token_id_tuple(value: int | list[int] | None) -> tuple[int, ...]:
    """End-of-sequence ids as a tuple; config.json has none, one id, or a list."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def layer_windows(
    raw: Mapping[str, Any], where: str, window: int | None, sliding: Sequence[bool] | None = None
) -> tuple[int | None, ...]:
    """Tokens that each layer attends to.

    Args:
        raw: config.json; its `layer_types` take precedence.
        where: its path.
        window: tokens that sliding layers attend to; None if the model has none.
        sliding: whether each layer has the window if `layer_types` is missing; None for all, if there is a window.

    Raises:
        CheckpointError: a layer type is unknown, or a layer slides but the model has no window, or one below 1.
    """
    if sliding is None:
        sliding = [window is not None] * whole(raw, "num_hidden_layers")
    kinds = raw.get("layer_types") or ["sliding_attention" if slides else "full_attention" for slides in sliding]
    for kind in kinds:
        check_options({"layer_types": kind}, where, layer_types=("full_attention", "sliding_attention"))
    window = None if window is None else whole({"sliding_window": window}, "sliding_window")
    if window is not None and window < 1:
        raise CheckpointError(f"{where}: sliding_window {window} must be at least 1; fetch the checkpoint again")
    if window is None and "sliding_attention" in kinds:
        raise CheckpointError(f"{where}: layer_types has sliding layers, but there is no sliding_window for them")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _head_dim(raw: Mapping[str, Any]) -> int:
    if raw.get("head_dim"):
        return whole(raw, "head_dim")
    size, heads = whole(raw, "hidden_size"), whole(raw, "num_attention_heads")
    if heads < 1 or size % heads:
        raise CheckpointError(
            f"num_attention_heads {heads} does not divide hidden_size {size}, and there is no head_dim: the "
            "checkpoint's config is damaged, fetch it again"
        )
    return size // heads


def rope_scaling(rope: Mapping[str, Any], raw: Mapping[str, Any], where: str) -> RopeScaling | None:
    """The scaling in rope_parameters or rope_scaling; None for none.

    Raises:
        CheckpointError: the kind of scaling is not supported, or its parameters make no sense.
    """
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in _SCALINGS:
        names = ", ".join(map(repr, _SCALINGS))
        raise CheckpointError(f"{where}: rope scaling {kind!r} is not supported, these are: {names}")
    longest = raw.get("max_position_embeddings", _DEFAULT_LENGTH)
    # As in Transformers 5, a trained length outside the parameters has precedence.
    length = raw.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or longest
    rope_values = {**rope, "original_max_position_embeddings": longest if kind == "dynamic" else length}
    if kind == "longrope":
        rope_values["factor"] = rope.get("factor") or longest / length
        if length < 2 and not rope.get("attention_factor"):
            raise CheckpointError(
                f"{where}: original_max_position_embeddings {length} of rope scaling 'longrope' must be at least 2 "
                "without an attention_factor; fetch the checkpoint again"
            )
    if kind in ("yarn", "longrope"):
        rope_values["attention_factor"] = rope.get("attention_factor") or _attention_factor(kind, rope_values)
    required = ("short_factor", "long_factor") if kind == "longrope" else ("factor",)
    for name in required:
        _ = rope_values[name]  # a KeyError names the missing parameter
    settings = {
        name: convert(rope_values[name])
        for name, convert in _SCALINGS[kind].items()
        if rope_values.get(name) is not None
    }
    scaling = RopeScaling(kind=kind, **settings)
    _check_scaling(scaling, int(_head_dim(raw) * _rotated_share(rope, raw)), where)
    return scaling


def _check_scaling(scaling: RopeScaling, rotary_dim: int, where: str) -> None:
    """Raises CheckpointError for parameters of `dynamic` and `longrope` that do not determine frequencies."""
    if scaling.kind == "dynamic" and (not 1 <= scaling.factor < math.inf or rotary_dim <= 2):
        raise CheckpointError(
            f"{where}: rope scaling 'dynamic' takes a finite factor of at least 1 and a head_dim above 2, not "
            f"{scaling.factor} and {rotary_dim}; fetch the checkpoint again"
        )
    if scaling.kind != "longrope":
        return
    if not 0 < scaling.attention_factor < math.inf:
        raise CheckpointError(
            f"{where}: attention_factor {scaling.attention_factor} of rope scaling 'longrope' is not positive; "
            "fetch the checkpoint again"
        )
    for name in ("short_factor", "long_factor"):
        factors: tuple[float, ...] = getattr(scaling, name)
        if len(factors) != rotary_dim // 2 or not all(0 < factor < math.inf for factor in factors):
            raise CheckpointError(
                f"{where}: {name} of rope scaling 'longrope' must be {rotary_dim // 2} positive numbers, one for each "
                "pair of rotated elements; fetch the checkpoint again"
            )


def _attention_factor(kind: str, rope: Mapping[str, Any]) -> float:
    """The factor of YaRN and LongRoPE on queries and keys, if the config does not give it."""
    scale = float(rope["factor"])
    if kind == "longrope":
        length = rope["original_max_position_embeddings"]
        return math.sqrt(1 + math.log(scale) / math.log(length)) if scale > 1 else 1.0
    mscale, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and all_dims:
        return yarn_length(scale, mscale) / yarn_length(scale, all_dims)
    return yarn_length(scale)


def yarn_length(scale: float, mscale: float = 1.0) -> float:
    """YaRN's factor on vectors at `scale` times the trained length (arXiv 2309.00071, eq. 22)."""
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


_NOT_IN_HF = (
    "rope_theta", "rope_scaling", "eos_token_ids", "windows", "norm_offset", "qkv_bias", "qk_norm",
    "partial_rotary_factor", "unrotated_layers",
)  # fmt: skip
"""Fields of `ModelConfig` that config.json has under other names, or that `model_type` implies."""


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """A config.json from which Transformers 5 reads the same Llama, Qwen2 or Qwen3."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaling = config.rope_scaling
    if scaling is not None:
        rope |= {"rope_type": scaling.kind} | {name: getattr(scaling, name) for name in _SCALINGS[scaling.kind]}
    fields = dataclasses.asdict(config)
    for ours in _NOT_IN_HF:
        del fields[ours]
    if config.cla_factor == 1:
        del fields["cla_factor"]  # Transformers does not know it
    eos = config.eos_token_ids
    return fields | {
        "architectures": [f"{config.model_type.capitalize()}ForCausalLM"],
        "hidden_act": "silu",
        "rope_parameters": rope,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None,
    }
