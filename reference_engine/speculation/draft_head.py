"""Drafts of an EAGLE-3 head (arXiv 2503.01840), which continues from hidden states of the verifying model.

Its cache is a shadow of the model's: other tensors, the same block tables, so that sharing, copies, swaps and
preemption apply to both. Entry i of the shadow is computed from token i+1 and the model's hidden states at token i. The
model computes those states anyway; the head computes the entries of a prompt right after the model, and those of an
answer before the next drafts, when it is known which tokens were accepted. The last entry of a block depends on the
first token after the block: if the prefix cache gives the block to a request that continues differently, drafts may be
worse, never the answer.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.models.decoder import Taps
from bakeoff.reference_engine.models.execution import Batch
from bakeoff.reference_engine.scheduling.step import Chunk, Step
from bakeoff.reference_engine.speculation.chains import Chains, copies_of_group
from bakeoff.reference_engine.speculation.head_execution import HeadExecutor
from bakeoff.reference_engine.speculation.residual import Distribution

_MOST_HELD = 32
"""Most tokens of a request whose hidden states are kept for their entries while nothing is drafted."""


@dataclasses.dataclass(slots=True)
class _Followed:
    """Progress of the shadow for one request.

    Attributes:
        entered: entries in the shadow.
        states: fused hidden states [n, hidden_size] of the tokens after those; None for none.
    """

    entered: int
    states: torch.Tensor | None = None

    @property
    def num_held(self) -> int:
        """Tokens with hidden states and without an entry."""
        return 0 if self.states is None else len(self.states)

    def cut(self, end: int) -> None:
        """Forgets everything after the first `end` tokens: rejected drafts, and preempted tokens."""
        if self.entered > end:
            self.entered, self.states = end, None
        elif self.states is not None:
            self.states = self.states[: end - self.entered]

    def hold(self, states: torch.Tensor) -> None:
        """Adds hidden states of the next tokens."""
        self.states = torch.cat((self.states, states)) if self.states is not None and len(self.states) else states


class DraftHead:
    """Drafts a step's tokens with a head; a `Drafter`.

    Args:
        executor: of the head.
        group: of layers whose block tables the shadow follows; it has no window.
        taps: hold the verifying model's hidden states.
        rejects_residually: see `Chains`.

    Attributes:
        executor: see above.
    """

    def __init__(self, executor: HeadExecutor, group: int, taps: Taps, *, rejects_residually: bool = False) -> None:
        self.executor, self._group, self._taps = executor, group, taps
        self._chains = Chains(rejects_residually=rejects_residually)
        self._followed: dict[str, _Followed] = {}
        self._outputs: torch.Tensor | None = None  # of the head, for the latest drafts

    @property
    def origins(self) -> Sequence[Distribution | None]:
        return self._chains.origins

    def free(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that have ended."""
        for request_id in request_ids:
            self._followed.pop(request_id, None)

    def draft(self, step: Step, copies: BlockCopies) -> tuple[torch.Tensor | None, BlockCopies]:
        own = copies_of_group(copies, self._group)
        if own:
            self.executor.execute(Batch(own, [], [], [], []))
        for chunk in step.chunks:
            self._align(chunk)
        drafting = [chunk for chunk in step.chunks if chunk.drafts]
        waiting = [
            chunk for chunk in step.chunks if not chunk.drafts and self._of(chunk).num_held >= _MOST_HELD
        ]  # fmt: skip
        if waiting:  # the latest token may be on the device only
            self._enter(waiting, [min(chunk.start, len(chunk.request.token_ids) - 1) for chunk in waiting])
        if not drafting:
            return None, copies
        logits = self._enter(drafting, [chunk.start for chunk in drafting])
        if logits is None or len(logits) < len(drafting):
            raise EngineBugError("drafts without a known token to follow from")
        return self._chains.draw(drafting, logits, self._advance), copies

    def follow(self, step: Step) -> None:
        if self._taps.rows is None:
            raise EngineBugError("a draft head is loaded, and the model keeps no hidden states")
        fused = self.executor.fuse(self._taps.rows[: sum(chunk.length for chunk in step.chunks)])
        first = 0
        for chunk in step.chunks:
            self._of(chunk).hold(fused[first : first + chunk.length])
            first += chunk.length
        prompts = [chunk for chunk in step.chunks if chunk.length > 1 and not chunk.drafts]
        # The last entry gives the first draft, so it is computed with the drafts.
        self._enter(prompts, [chunk.end - 1 for chunk in prompts])
        for chunk in step.chunks:
            followed = self._of(chunk)
            for sibling in chunk.request.output_sequences[1:] if chunk.is_sampled else ():
                self._followed[sibling.request_id] = dataclasses.replace(followed)

    def _of(self, chunk: Chunk) -> _Followed:
        return self._followed[chunk.request.request_id]

    def _align(self, chunk: Chunk) -> None:
        """Aligns the entries and states of a request with the start of a chunk."""
        name, start = chunk.request.request_id, chunk.start
        followed = self._followed.get(name)
        if followed is None or followed.entered + followed.num_held < start:
            self._followed[name] = _Followed(start)  # the tokens before were found in the prefix cache
        else:
            followed.cut(start)

    def _enter(self, chunks: Sequence[Chunk], ends: Sequence[int]) -> torch.Tensor | None:
        """Computes the entries of requests up to `ends`; returns logits [chunks, vocab_size] of the last ones.

        Chunks without a new entry are left out; None if no chunk is left.
        """
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        hidden: list[torch.Tensor] = []
        for chunk, end in zip(chunks, ends, strict=True):
            followed = self._of(chunk)
            start = followed.entered
            if followed.states is None or end <= start:
                continue
            spans.append(Span([chunk.block_tables[self._group]], start, end - start))
            token_ids += chunk.request.token_ids[start + 1 : end + 1]
            positions += range(start, end)
            wanted_rows.append(len(token_ids) - 1)
            hidden.append(followed.states[: end - start])
            # A copy, because a view would keep the states of a whole prompt.
            followed.entered, followed.states = end, followed.states[end - start :].clone()
        if not spans:
            return None
        batch = Batch(BlockCopies(), spans, token_ids, positions, wanted_rows)
        logits, self._outputs = self.executor.compute(batch, torch.cat(hidden))
        return logits

    def _advance(self, chunks: Sequence[Chunk], rows: Sequence[int], place: int, tokens: torch.Tensor) -> torch.Tensor:
        """The entries belong to guesses and are computed again once it is known which were accepted."""
        if self._outputs is None:
            raise EngineBugError("a chain of drafts goes on before it has begun")
        spans = [Span([chunk.block_tables[self._group]], chunk.start + place, 1) for chunk in chunks]
        positions = [span.start for span in spans]
        token_ids, wanted_rows = [-1 - row for row in rows], list(range(len(spans)))
        batch = Batch(BlockCopies(), spans, token_ids, positions, wanted_rows, previous=tokens)
        index = torch.tensor(rows).to(tokens.device, non_blocking=True)
        logits, self._outputs = self.executor.compute(batch, self._outputs.index_select(0, index))
        return logits
