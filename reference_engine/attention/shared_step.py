"""Attention of a part of a step's tokens, whose keys and values come from all processes (context parallelism).

Every process has the whole model and the whole cache. Of a long step each computes some tokens, and before it attends
in a layer it gathers the keys and values of all (as in the training of Llama 3, arXiv 2407.21783, section 3.3.2).
"""

from collections.abc import Iterator, Sequence

import torch

from bakeoff.reference_engine.attention.base import AttentionStep, Span, slot_mapping
from bakeoff.reference_engine.core.ranks import Ranks
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.storage import KvStorage


class TokenShare:
    """The tokens of a step that one of several processes computes.

    The tokens are cut into twice as many pieces as there are processes; each gets one from the front and one from the
    end, because later tokens of a prompt see more.

    Args:
        spans: of the step.
        ranks: the processes.

    Attributes:
        rows: of the step.
        spans: of these rows.
    """

    def __init__(self, spans: Sequence[Span], ranks: Ranks) -> None:
        total, count, own = sum(span.length for span in spans), ranks.contexts, ranks.context
        self._ranks, self._width = ranks, -(-total // (2 * count))
        width = self._width
        pieces = [range(min(piece * width, total), min((piece + 1) * width, total)) for piece in range(2 * count)]
        self.rows: list[int] = [*pieces[own], *pieces[-1 - own]]
        self.spans: list[Span] = [part for piece in (pieces[own], pieces[-1 - own]) for part in _within(spans, piece)]
        # Of each row of the step its place among the gathered ones: two pieces of each process, the second one padded.
        slots = [2 * piece if piece < count else 2 * (2 * count - 1 - piece) + 1 for piece in range(2 * count)]
        self._places = [slot * width + i for slot, piece in zip(slots, pieces, strict=True) for i in range(len(piece))]
        self._order: torch.Tensor | None = None

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """All rows of the step, from this share's rows and those of the other processes."""
        if self._order is None:
            self._order = torch.tensor(self._places, device=rows.device)
        padded = rows.new_zeros(2 * self._width, *rows.shape[1:])
        padded[: len(rows)] = rows
        return self._ranks.gather_rows(padded).index_select(0, self._order)


def _within(spans: Sequence[Span], rows: range) -> Iterator[Span]:
    """The parts of spans that are in these rows of the step."""
    first = 0
    for span in spans:
        begin, end = max(first, rows.start), min(first + span.length, rows.stop)
        if begin < end:
            yield Span(span.tables, span.start + begin - first, end - begin)
        first += span.length


class SharedStep:
    """An `AttentionStep` for the tokens of a share.

    Args:
        step: for the share's spans.
        share: of the step.
        spans: of the step.
        storage: of this process.
    """

    def __init__(self, step: AttentionStep, share: TokenShare, spans: Sequence[Span], storage: KvStorage) -> None:
        self._step, self._share, self._storage = step, share, storage
        self._slots = [
            torch.tensor(slot_mapping(spans, storage.block_size, group), device=storage.device)
            for group in range(len(storage.layout.groups))
        ]

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
        """Stores the keys and values of all tokens of the step."""
        if key is not None:
            all_keys = self._share.gather(key)
            all_values = None if value is None else self._share.gather(value)
            self._storage.stores[layer].write(self._slots[self._storage.group_of[layer]], all_keys, all_values)
        return self._step.attend(layer, query, key, value, scoring, towards_sinks=towards_sinks)
