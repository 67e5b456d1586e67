"""A random Llama on the device, of any shape and without files."""

from collections.abc import Sequence

import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import block_list
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.storage import KvStorage, allocate_storage
from bakeoff.reference_engine.loading.dummy import DummyWeights
from bakeoff.reference_engine.models.decoder import Model
from bakeoff.reference_engine.models.execution import Batch
from bakeoff.reference_engine.models.registry import build_model

BLOCK_SIZE = 16
LLAMA_8B = ModelConfig(
    vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=16_384, rms_norm_eps=1e-5, rope_theta=500_000.0,
)  # fmt: skip
TINY = ModelConfig(
    vocab_size=1000, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, rms_norm_eps=1e-5, rope_theta=10_000.0,
)  # fmt: skip


def random_model(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> Model:
    """A random model; all calls with one config return the same weights."""
    length, device = config.max_position_embeddings, torch.device("cuda")
    return build_model(config, DummyWeights(config), max_positions=length, dtype=dtype, device=device)


def storage_for(config: ModelConfig, num_blocks: int, dtype: torch.dtype = torch.bfloat16) -> KvStorage:
    """An empty cache."""
    layer = LayerLayout(config.num_key_value_heads, config.head_dim, config.head_dim)
    layout, device = CacheLayout((layer,) * config.num_hidden_layers), torch.device("cuda")
    return allocate_storage(layout, num_blocks=[num_blocks], block_size=BLOCK_SIZE, dtype=dtype, device=device)


def tables_for(count: int, tokens: int) -> list[Sequence[int]]:
    """Tables of scattered blocks for `count` sequences of `tokens` tokens."""
    length = -(-tokens // BLOCK_SIZE)
    blocks = torch.randperm(count * length).tolist()
    return [block_list(blocks[i * length : (i + 1) * length]) for i in range(count)]


def batch_of(
    tables: Sequence[Sequence[int]],
    shape: Sequence[tuple[int, int]],
    token_ids: list[int],
    previous: torch.Tensor | None = None,
) -> Batch:
    """A step of (start, length) for each table, in which each span's last token is sampled."""
    spans = [Span([table], start, length) for table, (start, length) in zip(tables, shape, strict=True)]
    positions = [position for start, length in shape for position in range(start, start + length)]
    last = torch.tensor([length for _, length in shape]).cumsum(0) - 1
    return Batch(BlockCopies(), spans, token_ids, positions, last.tolist(), previous=previous)
