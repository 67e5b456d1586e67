"""Perplexity of a text under any setting of the cache: what rounding or forgetting keys and values costs in accuracy.

exp of the mean of -ln p(token | the tokens before it). A text is computed in small steps, so that nearly all that a
token sees of its past comes out of the cache as a request's later steps would find it: rounded, out of sight, dropped.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from reference_engine.ablations.heavy_hitter import Census, HeavyHitterAttention
from reference_engine.attention.base import Span
from reference_engine.engine.assembly import attention_of, demand_of, resolve_config, storage_of
from reference_engine.engine.config import EngineConfig
from reference_engine.errors import ConfigError, RequestError
from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.kv_cache.block_table import BlockTable
from reference_engine.loading.checkpoint import open_checkpoint
from reference_engine.models.registry import build_model

STEP_TOKENS = 32
"""Tokens in one step: few against any window or budget, yet enough to share the reading of the model's weights."""


@dataclasses.dataclass(frozen=True, slots=True)
class Perplexity:
    """What came out.

    Attributes:
        perplexity: of the text.
        nats_per_token: its logarithm.
        tokens: that were predicted; the first one of each piece is not.
        kv_bytes_per_token: what a token that is kept takes in all layers, scales and the like among it.
        kv_peak_bytes: of the blocks that the longest piece held at the same time.
        census: what a budget left of the first piece; None without one.
    """

    perplexity: float
    nats_per_token: float
    tokens: int
    kv_bytes_per_token: int
    kv_peak_bytes: int
    census: Census | None


class PerplexityMeter:
    """One model with one cache setting.

    Args:
        config: model and cache settings; what is about serving is not used. Longer texts than `max_model_len` are cut
            into pieces of that many tokens, which do not see each other.
        step_tokens: computed at once.

    Raises:
        CheckpointError, ConfigError: the model or the settings are at fault.
    """

    def __init__(self, config: EngineConfig, step_tokens: int = STEP_TOKENS) -> None:
        if step_tokens < 1:
            raise ConfigError(f"--step-tokens must be at least 1, not {step_tokens}")
        checkpoint = open_checkpoint(Path(config.model))
        alone = dataclasses.replace(
            config,
            max_num_seqs=1,
            max_num_batched_tokens=step_tokens,
            enable_prefix_caching=False,
            preemption="recompute",
            tensor_parallel_size=1,
        )
        self.config = resolve_config(alone, checkpoint.config)
        self.tokenizer = checkpoint.tokenizer
        self._demand = demand_of(self.config, checkpoint.config)
        self._num_blocks = self.config.num_blocks or 0
        if self._num_blocks < self._demand.useful:
            raise ConfigError(
                f"{self._num_blocks} KV blocks are too few for {self._demand.max_model_len} tokens at once; "
                "make --max-model-len smaller"
            )
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        self._device = torch.device(self.config.device)
        self._vocab_size = checkpoint.config.vocab_size
        self._model = build_model(
            checkpoint.config,
            checkpoint.weights,
            max_positions=self._demand.max_model_len,
            dtype=getattr(torch, self.config.dtype),
            device=self._device,
            quantization=self.config.quantization,
        )

    def measure(self, token_ids: Sequence[int]) -> Perplexity:
        """Predicts every token of a text but the first.

        Raises:
            RequestError: there is nothing to predict, or the model does not know a token.
        """
        foreign = [token for token in token_ids if not 0 <= token < self._vocab_size]
        if foreign:
            raise RequestError(f"token id {foreign[0]} is outside the vocabulary of {self._vocab_size}")
        if len(token_ids) < 2:
            raise RequestError(f"a text of {len(token_ids)} tokens has nothing to predict; give at least two")
        length = self._demand.max_model_len
        pieces = [token_ids[first : first + length] for first in range(0, len(token_ids) - 1, length)]
        found = [self._measure_piece(piece) for piece in pieces if len(piece) > 1]
        tokens = sum(len(piece) - 1 for piece in pieces)
        mean = math.fsum(nats for nats, _, _ in found) / tokens
        return Perplexity(
            perplexity=math.exp(mean),
            nats_per_token=mean,
            tokens=tokens,
            kv_bytes_per_token=sum(self._demand.token_bytes),
            kv_peak_bytes=max(peak for _, peak, _ in found),
            census=found[0][2],
        )

    @torch.inference_mode()
    def _measure_piece(self, token_ids: Sequence[int]) -> tuple[float, int, Census | None]:
        """Nats of all its tokens but the first, bytes of the blocks in use at most, and what a budget left."""
        config, demand = self.config, self._demand
        attention = attention_of(config, storage_of(config, demand, self._num_blocks, self._device))
        pools = [BlockPool(size, config.block_size) for size in demand.sizes(self._num_blocks)]
        tables = [BlockTable(pool, visible) for pool, visible in zip(pools, demand.layout.groups, strict=True)]
        tokens = torch.tensor(token_ids, device=self._device)
        nats, peak, inputs = 0.0, 0, len(token_ids) - 1
        for start in range(0, inputs, config.max_num_batched_tokens):
            end = min(start + config.max_num_batched_tokens, inputs)
            for table in tables:
                table.make_writable(start, end)
            used = [pool.num_used * config.block_size for pool in pools]
            peak = max(peak, sum(a * b for a, b in zip(used, demand.token_bytes, strict=True)))
            logits = self._model.forward(
                tokens[start:end],
                torch.arange(start, end, device=self._device),
                attention.begin_step([Span([table.blocks for table in tables], start, end - start)]),
            )
            nats += float(cross_entropy(logits.float(), tokens[start + 1 : end + 1], reduction="sum"))
            for table in tables:
                table.hide(end)
        is_partial = isinstance(attention, HeavyHitterAttention)
        census = attention.census([table.blocks for table in tables], inputs) if is_partial else None
        return nats, peak, census


def measure_file(path: Path, config: EngineConfig, step_tokens: int) -> Perplexity:
    """Of a text file in UTF-8.

    Raises:
        CheckpointError, ConfigError, RequestError: the model, the settings or the text are at fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is no text that can be read: {error}") from error
    meter = PerplexityMeter(config, step_tokens)
    return meter.measure(meter.tokenizer.encode(text))
