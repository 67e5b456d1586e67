"""Drafts of a smaller model, or of the model's own first layers.

A smaller model's keys and values lie in a shadow of the cache: other tensors, the same block tables. Whatever happens
to blocks (sharing, copies, swaps, preemption) so happens to both. The shadow may lack tokens that were decoded without
drafts; they are computed before the next draft. Where such a block is found in the prefix cache, drafts may be worse,
never the answer. The first layers of the model use the cache itself: what they write for drafts is what the
verification writes there.
"""

from collections.abc import Iterable, Sequence

import torch

from reference_engine.attention.base import Span
from reference_engine.engine.execution import Batch, Executor
from reference_engine.errors import EngineBugError
from reference_engine.kv_cache.block_copies import BlockCopies, BlockCopy
from reference_engine.sampling import LaterPlace, Place, choose
from reference_engine.scheduling.step import Chunk, Step
from reference_engine.speculation.draft_vocabulary import TokenMap
from reference_engine.speculation.residual import Distribution, draw_drafts


class DraftModel:
    """Makes the drafts of a step, all sequences together, a place at a time.

    Unless drafts are rejected residually, one is drawn as the verifying model would draw it, with the request's own
    random number for that place: where the two models' distributions are close, so are the tokens. Penalties, biases
    and grammars do not count here: nothing but this class sees rows of a trimmed head.

    Args:
        executor: of the draft model.
        group: of layers whose block tables the shadow follows; it has no window. None where there is no shadow.
        rejects_residually: whether drafts are verified by `residual.py`, and drawn with random numbers of their own.
        tokens: of the rows of a trimmed head; None where each token has its row.

    Attributes:
        executor: the same.
        origins: what the drafts of the latest step were drawn from, draft by draft; empty unless they are rejected
            residually.
    """

    def __init__(
        self,
        executor: Executor,
        group: int | None,
        *,
        rejects_residually: bool = False,
        tokens: TokenMap | None = None,
    ) -> None:
        self.executor, self._group, self._rejects_residually = executor, group, rejects_residually
        self._tokens = tokens
        self.origins: list[Distribution | None] = []
        self._covered: dict[str, int] = {}  # leading tokens of a request that the shadow has

    def free(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that have ended."""
        for request_id in request_ids:
            self._covered.pop(request_id, None)

    def draft(self, step: Step, copies: BlockCopies) -> tuple[torch.Tensor | None, BlockCopies]:
        """Follows a step of the verifying model, and drafts for it.

        Args:
            step: whose drafts are placeholders.
            copies: blocks that it copies first.

        Returns:
            int64 [drafts of all chunks], chunk by chunk, on the device of the model, or None without drafts; and the
            copies that are left to be made.
        """
        own = copies
        if self._group is not None:
            own = BlockCopies(*(self._own(pairs) for pairs in (copies.to_host, copies.to_device, copies.within)))
        if own:
            self.executor.execute(Batch(own, [], [], [], []))
        for chunk in step.chunks:
            # What was preempted since, or found in the prefix cache, ends where the chunk begins.
            name = chunk.request.request_id
            covered = chunk.start if self._group is None else self._covered.get(name, chunk.start)
            self._covered[name] = min(covered, chunk.start)
        prompts = [chunk for chunk in step.chunks if not chunk.drafts and not chunk.request.num_pending]
        prompts = [chunk for chunk in prompts if chunk.length > 1 or chunk.start < chunk.request.prompt_len]
        if prompts and self._group is not None:
            self._compute(prompts, [chunk.end for chunk in prompts])
        drafting = [chunk for chunk in step.chunks if chunk.drafts]
        left = BlockCopies() if self._group is None else copies
        return (self._drafts(drafting) if drafting else None), left

    def _own(self, pairs: Sequence[BlockCopy]) -> list[BlockCopy]:
        return [(0, read, write) for group, read, write in pairs if group == self._group]

    def _compute(self, chunks: Sequence[Chunk], ends: Sequence[int]) -> torch.Tensor:
        """Computes the known tokens of requests up to `ends`; logits [chunks, rows of the head] of the last ones."""
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        for chunk, end in zip(chunks, ends, strict=True):
            start = self._covered[chunk.request.request_id]
            spans.append(self._span(chunk, start, end - start))
            token_ids += chunk.request.token_ids[start:end]
            positions += range(start, end)
            wanted_rows.append(len(token_ids) - 1)
            self._covered[chunk.request.request_id] = end
        return self._executed(Batch(BlockCopies(), spans, token_ids, positions, wanted_rows))

    def _drafts(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        logits = self._compute(chunks, [chunk.start + 1 for chunk in chunks])
        lengths = [len(chunk.drafts) for chunk in chunks]
        firsts = [sum(lengths[:place]) for place in range(len(chunks))]
        going, places = list(range(len(chunks))), list[int]()
        made: list[torch.Tensor] = []
        self.origins = [None] * sum(lengths) if self._rejects_residually else []
        for place in range(max(lengths)):
            requests = [chunks[number].request for number in going]
            later = [LaterPlace(request.sampling, request.num_sampled + place) for request in requests]
            here = [firsts[number] + place for number in going]
            made.append(self._drawn(logits, later, here))
            places += here
            rows = [row for row, number in enumerate(going) if lengths[number] > place + 1]
            going = [going[row] for row in rows]
            if not going:
                break
            spans = [self._span(chunks[number], chunks[number].start + place + 1, 1) for number in going]
            token_ids, positions = [-1 - row for row in rows], [span.start for span in spans]
            batch = Batch(BlockCopies(), spans, token_ids, positions, list(range(len(spans))), previous=made[-1])
            logits = self._executed(batch)
            for number, position in zip(going, positions, strict=True):
                self._covered[chunks[number].request.request_id] = position + 1
        drafts = torch.cat(made)
        order = torch.tensor(places).to(drafts.device, non_blocking=True)
        return torch.empty_like(drafts).index_copy_(0, order, drafts)

    def _drawn(self, logits: torch.Tensor, later: Sequence[Place], here: Sequence[int]) -> torch.Tensor:
        """A draft for each place, int64 [places]; what they were drawn from goes to `origins` at the indices `here`."""
        if self._rejects_residually:
            chosen, origins = draw_drafts(logits, later)
            rows = torch.tensor(chosen, device=logits.device)
            for index, origin in zip(here, origins, strict=True):
                if origin is not None and self._tokens is not None:
                    self.origins[index] = self._tokens.distribution(origin)
                else:
                    self.origins[index] = origin
        else:
            rows = choose(logits, later)
        return rows if self._tokens is None else self._tokens.token_ids(rows)

    def _span(self, chunk: Chunk, start: int, length: int) -> Span:
        tables = chunk.block_tables if self._group is None else [chunk.block_tables[self._group]]
        return Span(tables, start, length)

    def _executed(self, batch: Batch) -> torch.Tensor:
        logits = self.executor.execute(batch)
        if logits is None:
            raise EngineBugError("a batch with spans has no logits")
        return logits
