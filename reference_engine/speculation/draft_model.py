"""Drafts from a smaller model, or from the model's own first layers.

A smaller model's keys and values are stored in a shadow of the cache: other tensors, the same block tables. So sharing,
copies, swaps and preemption of blocks apply to both. The shadow may lack tokens that were decoded without drafts; they
are computed before the next draft. If such a block is found in the prefix cache, drafts may be worse, but the answer
stays the same. The first layers of the model use the cache itself: they write the same entries for drafts as the
verification.
"""

from collections.abc import Iterable, Sequence

import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.models.execution import Batch, Executor
from bakeoff.reference_engine.scheduling.step import Chunk, Step
from bakeoff.reference_engine.speculation.chains import Chains, copies_of_group
from bakeoff.reference_engine.speculation.draft_vocabulary import TokenMap
from bakeoff.reference_engine.speculation.residual import Distribution

_MOST_ROWS = 4
"""Most known tokens of a request that are computed as rows over one block table, so that a CUDA graph can run the
step. After drafts that were all accepted there are two."""


class DraftModel:
    """Drafts a step's tokens from tokens alone; a `Drafter`.

    Args:
        executor: of the draft model.
        group: of layers whose block tables the shadow follows; it has no window. None without a shadow.
        rejects_residually: see `Chains`.
        tokens: see `Chains`.

    Attributes:
        executor: see above.
    """

    def __init__(
        self,
        executor: Executor,
        group: int | None,
        *,
        rejects_residually: bool = False,
        tokens: TokenMap | None = None,
    ) -> None:
        self.executor, self._group = executor, group
        self._chains = Chains(rejects_residually=rejects_residually, tokens=tokens)
        self._covered: dict[str, int] = {}  # leading tokens of a request that the shadow has

    @property
    def origins(self) -> Sequence[Distribution | None]:
        return self._chains.origins

    def free(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that have ended."""
        for request_id in request_ids:
            self._covered.pop(request_id, None)

    def draft(self, step: Step, copies: BlockCopies) -> tuple[torch.Tensor | None, BlockCopies]:
        own = copies if self._group is None else copies_of_group(copies, self._group)
        if own:
            self.executor.execute(Batch(own, [], [], [], []))
        for chunk in step.chunks:
            # Tokens preempted since, or found in the prefix cache, end where the chunk begins.
            name = chunk.request.request_id
            covered = chunk.start if self._group is None else self._covered.get(name, chunk.start)
            self._covered[name] = min(covered, chunk.start)
        prompts = [chunk for chunk in step.chunks if not chunk.drafts and not chunk.request.num_pending]
        prompts = [chunk for chunk in prompts if chunk.length > 1 or chunk.start < chunk.request.prompt_len]
        if prompts and self._group is not None:
            self._compute(prompts, [chunk.end for chunk in prompts])
        drafting = [chunk for chunk in step.chunks if chunk.drafts]
        left = BlockCopies() if self._group is None else copies
        if not drafting:
            return None, left
        logits = self._compute(drafting, [chunk.start + 1 for chunk in drafting])
        return self._chains.draw(drafting, logits, self._advance), left

    def follow(self, step: Step) -> None:
        """Does nothing, because only tokens are read."""

    def _compute(self, chunks: Sequence[Chunk], ends: Sequence[int]) -> torch.Tensor:
        """Computes the known tokens of requests up to `ends`; returns logits [chunks, rows of the head] of the last."""
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        for chunk, end in zip(chunks, ends, strict=True):
            start = self._covered[chunk.request.request_id]
            if end - start <= _MOST_ROWS:
                spans += [self._span(chunk, position, 1) for position in range(start, end)]
            else:
                spans.append(self._span(chunk, start, end - start))
            token_ids += chunk.request.token_ids[start:end]
            positions += range(start, end)
            wanted_rows.append(len(token_ids) - 1)
            self._covered[chunk.request.request_id] = end
        return self._executed(Batch(BlockCopies(), spans, token_ids, positions, wanted_rows))

    def _advance(self, chunks: Sequence[Chunk], rows: Sequence[int], place: int, tokens: torch.Tensor) -> torch.Tensor:
        """Draft one more token of each sequence."""
        spans = [self._span(chunk, chunk.start + place + 1, 1) for chunk in chunks]
        positions = [span.start for span in spans]
        token_ids, wanted_rows = [-1 - row for row in rows], list(range(len(spans)))
        batch = Batch(BlockCopies(), spans, token_ids, positions, wanted_rows, previous=tokens)
        logits = self._executed(batch)
        for chunk, position in zip(chunks, positions, strict=True):
            self._covered[chunk.request.request_id] = position + 1
        return logits

    def _span(self, chunk: Chunk, start: int, length: int) -> Span:
        tables = chunk.block_tables if self._group is None else [chunk.block_tables[self._group]]
        return Span(tables, start, length)

    def _executed(self, batch: Batch) -> torch.Tensor:
        logits = self.executor.execute(batch)
        if logits is None:
            raise EngineBugError("a batch with spans has no logits")
        return logits
