"""The twin that the fast backends are tested against: one token and one head at a time, softmax written in float32.

Formula: softmax(q·Kᵀ · scale)·V (Attention Is All You Need, arXiv 1706.03762, eq. 1), with the query heads of one group
sharing a key/value head (GQA, arXiv 2305.13245); bounded scores and learned sinks as `Scoring` describes them.
"""

from collections.abc import Sequence

import torch

from bakeoff.reference_engine.attention.base import Span, slot_mapping
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.storage import KvStorage


class NaiveAttention:
    """Slow and plain; any device, any dtype, accumulates in float32."""

    def __init__(self, storage: KvStorage) -> None:
        self._storage = storage

    def begin_step(self, spans: Sequence[Span]) -> "NaiveStep":
        """See `AttentionBackend.begin_step`."""
        return NaiveStep(self._storage, spans)


class NaiveStep:
    """One step of `NaiveAttention`."""

    def __init__(self, storage: KvStorage, spans: Sequence[Span]) -> None:
        self._storage = storage
        self._spans = spans

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scoring: Scoring = PLAIN,
        *,
        towards_sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        storage, size = self._storage, self._storage.block_size
        group, visible = storage.layout.group_of(layer), storage.layout.layers[layer].visible
        store = storage.stores[layer]
        if key is not None:
            slots = torch.tensor(slot_mapping(self._spans, size, group), device=storage.device)
            store.write(slots, key, value)
        rows: list[torch.Tensor] = []
        for span in self._spans:
            for position in range(span.start, span.end):
                positions = [at for at in range(position + 1) if sees(visible, position, at)]
                blocks = sorted({at // size for at in positions})
                keys, values = store.read(torch.tensor([span.tables[group][i] for i in blocks], device=storage.device))
                places = [blocks.index(at // size) * size + at % size for at in positions]
                row, is_sink = len(rows), torch.tensor(positions) < visible.sinks
                apart = query[row] if towards_sinks is None else towards_sinks[row]
                seen = keys[places].float(), values[places].float()
                rows.append(_attend_one(query[row], apart, is_sink, *seen, scoring))
        return torch.stack(rows).flatten(1).to(query.dtype)


def sees(visible: Visible, position: int, other: int) -> bool:
    """Whether a token sees an earlier one, or itself."""
    return visible.window is None or position - other < visible.window or other < visible.sinks


def _attend_one(
    query: torch.Tensor,
    apart: torch.Tensor,
    is_sink: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """Queries [num_heads, key_dim], keys and values [seen, num_kv_heads, dim] -> [num_heads, value_dim]."""
    group = query.shape[0] // keys.shape[1]
    outputs: list[torch.Tensor] = []
    for head in range(query.shape[0]):
        scale: float = query.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
        own = keys[:, head // group]
        scores = torch.where(is_sink, own @ apart[head].float(), own @ query[head].float()) * scale
        if scoring.soft_cap is not None:
            scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
        weights, sink = torch.exp(scores), 0.0
        if scoring.sinks is not None:
            sink = float(scoring.sinks[head].exp())
        outputs.append((weights / (weights.sum() + sink)) @ values[:, head // group])
    return torch.stack(outputs)
