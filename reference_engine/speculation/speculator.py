"""Plans drafts before a step, and records their acceptance after it."""

from collections.abc import Callable, Iterable, Sequence

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.scheduling.step import Chunk
from bakeoff.reference_engine.speculation.draft_lengths import DraftLengths, Offer
from bakeoff.reference_engine.speculation.ngram import NgramDrafter

_PAUSE_STEPS = 32
"""Steps between two attempts to draft while drafting is not worth it, so that steps may overlap meanwhile."""
_PLACEHOLDER = 0  # for a draft that a model will compute


class Speculator:
    """Decides how many drafts each sequence gets.

    Args:
        lengths: chooses the numbers.
        max_rows: most sequences and drafts of a step together.
        ngram: copies drafts from the sequence; None if a model of the runner drafts.
        free: forgets ended requests in that model.
    """

    def __init__(
        self,
        lengths: DraftLengths,
        max_rows: int,
        ngram: NgramDrafter | None = None,
        free: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        self._lengths, self._max_rows, self._ngram = lengths, max_rows, ngram
        self._free = free if ngram is None else ngram.free
        self._pause = 0
        self._contexts: dict[str, int] = {}  # of each request's latest drafts

    def needs_tokens(self) -> bool:
        """Whether the tokens of a step must be known before the next one is planned, since that may have drafts."""
        self._pause -= 1
        return self._pause < 0

    def plan(self, running: Sequence[Request]) -> None:
        """Sets the drafts of the next step; placeholders if a model will compute them."""
        for request in running:
            request.draft_token_ids = ()
        if any(request.num_pending for request in running):
            return  # drafts continue known tokens
        decoding = [request for request in running if request.is_decoding]
        offers = [(request, *self._offer(request)) for request in decoding if not request.sampling.num_candidates]
        offers = [offer for offer in offers if offer[1]]
        if not offers:
            return
        counts = self._lengths.choose(
            [Offer(request.request_id, context, len(drafts)) for request, drafts, context in offers], len(decoding)
        )
        room = self._max_rows - len(decoding)
        for (request, drafts, context), count in zip(offers, counts, strict=True):
            request.draft_token_ids = drafts[: min(count, max(0, room))]
            self._contexts[request.request_id] = context
            room -= count
        if not any(counts):
            self._pause = _PAUSE_STEPS

    def observe(self, verified: Iterable[tuple[Chunk, int]]) -> None:
        """Records verifications: chunks with drafts, and how many of each were accepted."""
        for chunk, num_accepted in verified:
            name = chunk.request.request_id
            self._lengths.observe(Offer(name, self._contexts[name], len(chunk.drafts)), num_accepted)

    def observe_step(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """Records the duration of a step, unless it also computed prompts: then it is no measure of decoding."""
        if chunks and all(chunk.length == len(chunk.drafts) + 1 for chunk in chunks):
            self._lengths.observe_step([len(chunk.drafts) for chunk in chunks], seconds)

    def free(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that have ended."""
        ended = list(request_ids)
        self._lengths.free(ended)
        for request_id in ended:
            self._contexts.pop(request_id, None)
        self._free(ended)

    def _offer(self, request: Request) -> tuple[Sequence[int], int]:
        """Drafts that a request can have, and the context that they follow from."""
        # The last token of an answer follows from the one before, so a draft of it would have no successor.
        left = request.prompt_len + request.sampling.max_tokens - request.num_tokens - 1
        most = min(self._lengths.num_tokens, left)
        if most < 1:
            return (), 0
        return ([_PLACEHOLDER] * most, 0) if self._ngram is None else self._ngram.draft(request, most)
