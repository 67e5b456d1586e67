"""Loads a draft head, which `speculation.head_execution` computes."""

import dataclasses
from pathlib import Path

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.files import read_json
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.engine.executors import attention_of, device_of_rank, shadow_storages
from bakeoff.reference_engine.engine.resolution import DTYPES, cache_layout, store_maker_of
from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.kv_cache.layout import CacheLayout
from bakeoff.reference_engine.kv_cache.sizing import Demand
from bakeoff.reference_engine.kv_cache.storage import token_bytes
from bakeoff.reference_engine.loading.checkpoint import Checkpoint
from bakeoff.reference_engine.loading.safetensors import SafetensorsFiles
from bakeoff.reference_engine.models.decoder import Taps
from bakeoff.reference_engine.models.eagle import (
    EagleConfig,
    EagleHead,
    HeadSource,
    check_shapes,
    default_taps,
    draft_tokens,
    read_config,
)
from bakeoff.reference_engine.models.linear import Matrix
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.speculation.head_execution import HeadExecutor


@dataclasses.dataclass(frozen=True)
class LoadedHead:
    """A head on its device, and the shape of its cache.

    Attributes:
        head: with its weights.
        taps: what it reads of the verifying model.
        layout: of its cache.
        token_bytes: of one token there.
        group: of the verifying model's layers, without a window, whose block tables it follows.
    """

    head: EagleHead
    taps: Taps
    layout: CacheLayout
    token_bytes: int
    group: int

    @classmethod
    def load(cls, config: EngineConfig, checkpoint: Checkpoint, demand: Demand) -> "LoadedHead | None":
        """None if the settings name no head.

        Args:
            config: as `resolve_config` returned it.
            checkpoint: of the verifying model.
            demand: of that model.

        Raises:
            CheckpointError: files are missing or damaged, or tensors have the wrong shapes.
            ConfigError: the head was made for another model, or the model has windows in all layers.
        """
        drafts = config.drafts
        if drafts is None or drafts.method != "eagle" or drafts.model is None:
            return None
        directory = Path(drafts.model)
        if not directory.is_dir():
            raise CheckpointError(f"{directory}: no such folder; give one that bakeoff models eagle has written")
        where = str(directory / "config.json")
        read = read_config(read_json(directory / "config.json"), where)
        windows = [visible.window for visible in demand.layout.groups]
        if None not in windows:
            raise ConfigError("--speculation eagle needs a model with a layer that sees its whole past; use ngram")
        layers = _checked_taps(read, checkpoint.config, config)
        source = SafetensorsFiles(directory)
        check_shapes(source, read, len(layers), str(directory))
        weights = Weights(
            HeadSource(source),
            DTYPES[config.dtype],
            device_of_rank(config, 0),
            batch_invariant=config.batch_invariant,
        )
        has_embedding, tokens = "embed_tokens.weight" in source.names(), draft_tokens(source, read, str(directory))
        head = EagleHead(read, weights, tokens, demand.max_model_len, has_embedding=has_embedding)
        layout = cache_layout(read.layer)
        (token_size,) = token_bytes(layout, DTYPES[config.dtype], store_maker_of(config))
        return cls(head, Taps(layers), layout, token_size, windows.index(None))

    def executor(self, config: EngineConfig, demand: Demand, embedding: Matrix) -> HeadExecutor:
        """Over a cache with as many blocks as the verifying model's has.

        Args:
            config: whose cache has a size.
            demand: of the verifying model.
            embedding: of that model; replaces the head's own if that is missing or equal.
        """
        own = self.head.embedding
        is_equal = isinstance(own, torch.Tensor) and isinstance(embedding, torch.Tensor) and torch.equal(own, embedding)
        if own is None or is_equal:
            self.head.embedding = embedding
        storage, host = shadow_storages(config, demand, self.layout, self.group)
        return HeadExecutor(self.head, attention_of(config, storage), storage, host)


def _checked_taps(head: EagleConfig, model: ModelConfig, config: EngineConfig) -> tuple[int, ...]:
    """Depths whose hidden states a head reads.

    Raises:
        ConfigError: the head was made for another model.
    """
    sizes = {
        "a hidden size of": (head.layer.hidden_size, model.hidden_size),
        "a vocabulary of": (head.layer.vocab_size, model.vocab_size),
    }
    for name, (expected, actual) in sizes.items():
        if expected != actual:
            raise ConfigError(
                f"--speculation eagle: {config.speculation.split(':', 2)[2]} is for models with {name} {expected}, "
                f"{config.model} has {actual}; give a head that was made for this model"
            )
    layers = default_taps(model.num_hidden_layers) if head.taps is None else head.taps
    if len(set(layers)) != len(layers) or not all(0 <= layer <= model.num_hidden_layers for layer in layers):
        raise ConfigError(
            f"--speculation eagle: the head reads hidden states at the depths {', '.join(map(str, layers))}, the model "
            f"has {model.num_hidden_layers} layers; give a head that was made for this model"
        )
    return layers
