"""Models by config.json or by the name of a known shape, with the costs of each precision.

The only module of the harness that imports the reference engine, whose model of bytes and operations serves floors and
plans and needs no torch.
"""

import functools
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.precision import CachePrecision, Precision
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.models.config_readers import MoeConfig, config_from_hf
from bakeoff.reference_engine.models.costs import Chunk, Machine, ModelCosts, StepCosts, floor_s

__all__ = [
    "Chunk",
    "Machine",
    "Model",
    "ModelCosts",
    "StepCosts",
    "floor_s",
    "known_models",
    "load_model",
    "without_cache",
]

_BITS = 8.0


class Model(msgspec.Struct, frozen=True):
    """A model to plan for.

    Attributes:
        name: of the shape, or the path of its config.json.
        config: shapes.
    """

    name: str
    config: ModelConfig

    def costs(self, precision: Precision, cache: CachePrecision) -> ModelCosts:
        """Bytes and operations with weights and KV cache in these precisions."""
        end = precision.end_bits / _BITS
        return _costs(self.config, precision.weight_bits / _BITS, cache.bits / _BITS, end, cache.scaled)

    @property
    def kv_parts(self) -> str:
        """Parts of the KV cache that one token adds, as text."""
        config, vectors = self.config, self.config.cached_vectors
        layers = sum(config.shared_layer(index) is None for index in range(config.num_hidden_layers))
        if vectors.value_in_key:
            return f"{layers} layers × 1 latent of {vectors.key_dim} elements (MLA)"
        kind = {1: "MQA", config.num_attention_heads: "MHA"}.get(vectors.num_kv_heads, "GQA")
        text = f"{layers} layers × 2 × {vectors.num_kv_heads} heads × {vectors.key_dim} elements ({kind})"
        windows = [window for window in config.windows if window is not None]
        return text if not windows else f"{text}; {len(windows)} layers keep {min(windows):,} tokens at most"

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied by, output matrix included and embedding excluded."""
        return round(ModelCosts(self.config).step([Chunk()]).flops / 2 - self._attention_pairs)

    @property
    def _attention_pairs(self) -> float:
        config, vectors = self.config, self.config.cached_vectors
        return config.num_hidden_layers * config.num_attention_heads * (vectors.key_dim + vectors.value_dim)

    def why_not_split(self, ranks: int) -> str | None:
        """Why tensor parallelism over `ranks` GPUs is impossible; None if it is possible."""
        config = self.config
        sizes = {"attention heads": config.num_attention_heads, "feed-forward columns": config.intermediate_size}
        if isinstance(config, MoeConfig):
            sizes["columns of an expert"] = config.moe_intermediate_size
        for name, size in sizes.items():
            if size % ranks:
                return f"{ranks} GPUs do not divide {size} {name}"
        heads = config.cached_vectors.num_kv_heads
        return f"{ranks} GPUs do not divide {heads} key/value heads" if heads % ranks and ranks % heads else None


def without_cache(costs: ModelCosts) -> ModelCosts:
    """Costs of the same model with a KV cache of no bytes: those of the weights remain."""
    return _costs(costs.config, costs.weight_bytes_each, 0.0, costs.end_bytes_each, "auto")


@functools.cache
def _costs(
    config: ModelConfig, weight: float, kv: float, end: float | None, kv_cache_dtype: Literal["auto", "int8", "int4"]
) -> ModelCosts:
    """Cached, because counting the weights of many experts takes a while."""
    return ModelCosts(config, weight, kv, end, kv_cache_dtype=kv_cache_dtype)


def load_model(source: str) -> Model:
    """The model of a known name, a config.json, or a folder that holds one.

    Raises:
        BadPlan: there is no such model, or its family is not supported.
    """
    name, shapes = source.lower(), known_models()
    path = Path(source)
    if name in shapes and not path.exists():
        return Model(name, _config(shapes[name], name))
    path = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise BadPlan(f"'{source}' is neither a config.json nor a known model; known: {', '.join(shapes)}") from error
    except ValueError as error:
        raise BadPlan(f"{path} is not JSON ({error}); give a model's config.json") from error
    if not isinstance(raw, dict):
        raise BadPlan(f"{path} holds no object; give a model's config.json")
    return Model(source, _config(raw, str(path)))


@functools.cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """config.json of well-known models by lower-case name, weights and constants excluded."""
    text = (resources.files("bakeoff.harness.sizing") / "shapes.json").read_text(encoding="utf-8")
    return json.loads(text)


def _config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """The language model's config: in multimodal configs that is text_config."""
    text = raw.get("text_config")
    if text and not isinstance(text, dict):
        raise BadPlan(f"{where}: text_config holds no object; give a model's config.json")
    try:
        return config_from_hf(text or raw, where)
    except CheckpointError as error:
        raise BadPlan(str(error)) from error
