"""Chains of drafts, drawn one position at a time for all sequences of a step together."""

from collections.abc import Callable, Sequence

import torch

from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies, BlockCopy
from bakeoff.reference_engine.sampling import LaterPlace, Place, choose
from bakeoff.reference_engine.scheduling.step import Chunk
from bakeoff.reference_engine.speculation.draft_vocabulary import TokenMap
from bakeoff.reference_engine.speculation.residual import Distribution, draw_drafts

Advance = Callable[[Sequence[Chunk], Sequence[int], int, torch.Tensor], torch.Tensor]
"""Takes the chunks whose chains continue, their rows among the latest tokens, the position of these after each
sequence's last token (from 0), and the tokens, int64 [rows]; returns logits [chunks, rows of the head] of their
successors."""


class Chains:
    """Draws drafts from a model's logits.

    Unless drafts are rejected residually, each is drawn as the verifying model would draw it, with the request's own
    random number for that position: if the two models' distributions are close, so are the tokens. Penalties, biases
    and grammars are not applied, because a trimmed head has other rows than they expect.

    Args:
        rejects_residually: whether drafts are verified by `residual.py`, and drawn with separate random numbers.
        tokens: of the rows of a trimmed head; None if each token has its row.

    Attributes:
        origins: the distribution of each of the latest drafts; empty unless they are rejected residually.
    """

    def __init__(self, *, rejects_residually: bool, tokens: TokenMap | None = None) -> None:
        self._rejects_residually, self._tokens = rejects_residually, tokens
        self.origins: list[Distribution | None] = []

    def draw(self, chunks: Sequence[Chunk], logits: torch.Tensor, advance: Advance) -> torch.Tensor:
        """Drafts of chunks that have room for some.

        Args:
            chunks: each with placeholders.
            logits: of each sequence's next token, [chunks, rows of the head].
            advance: computes the next position.

        Returns:
            int64 [drafts of all chunks], chunk by chunk, on the device of the logits.
        """
        lengths = [len(chunk.drafts) for chunk in chunks]
        firsts = [sum(lengths[:place]) for place in range(len(chunks))]
        going, places = list(range(len(chunks))), list[int]()
        drawn: list[torch.Tensor] = []
        self.origins = [None] * sum(lengths) if self._rejects_residually else []
        for place in range(max(lengths)):
            requests = [chunks[number].request for number in going]
            later = [LaterPlace(request.sampling, request.num_sampled + place) for request in requests]
            indices = [firsts[number] + place for number in going]
            drawn.append(self._drawn(logits, later, indices))
            places += indices
            rows = [row for row, number in enumerate(going) if lengths[number] > place + 1]
            going = [going[row] for row in rows]
            if not going:
                break
            logits = advance([chunks[number] for number in going], rows, place, drawn[-1])
        drafts = torch.cat(drawn)
        order = torch.tensor(places).to(drafts.device, non_blocking=True)
        return torch.empty_like(drafts).index_copy_(0, order, drafts)

    def _drawn(self, logits: torch.Tensor, later: Sequence[Place], indices: Sequence[int]) -> torch.Tensor:
        """A draft for each place, int64 [places]; `origins[indices]` gets the distributions they were drawn from."""
        if self._rejects_residually:
            chosen, origins = draw_drafts(logits, later)
            rows = torch.tensor(chosen, device=logits.device)
            for index, origin in zip(indices, origins, strict=True):
                if origin is not None and self._tokens is not None:
                    self.origins[index] = self._tokens.distribution(origin)
                else:
                    self.origins[index] = origin
        else:
            rows = choose(logits, later)
        return rows if self._tokens is None else self._tokens.token_ids(rows)


def copies_of_group(copies: BlockCopies, group: int) -> BlockCopies:
    """The copies of one group of layers, for a shadow of the cache that has no other."""

    def own(pairs: Sequence[BlockCopy]) -> list[BlockCopy]:
        return [(0, read, write) for copied, read, write in pairs if copied == group]

    return BlockCopies(own(copies.to_host), own(copies.to_device), own(copies.within))
