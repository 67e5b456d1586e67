"""Drafts copied from prompt and answer: the continuation of the longest context that has occurred before.

Prompt lookup decoding, Saxena 2023; the longest context comes from a suffix automaton.
"""

from collections.abc import Iterable, Sequence

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.speculation.suffix_automaton import SuffixAutomaton

LONGEST_CONTEXT = 4
"""In tokens; longer contexts are not distinguished, because their continuations are equally likely to be accepted."""


class NgramDrafter:
    """Keeps an automaton of each request's tokens by its id."""

    def __init__(self) -> None:
        self._automata: dict[str, SuffixAutomaton] = {}

    def draft(self, request: Request, num_tokens: int) -> tuple[Sequence[int], int]:
        """Drafts of the next tokens.

        Returns:
            At most `num_tokens` drafts, none without a repeated context; and the tokens of that context, at most
                `LONGEST_CONTEXT`.
        """
        automaton = self._automata.setdefault(request.request_id, SuffixAutomaton())
        tokens = request.token_ids
        automaton.extend(tokens[len(automaton) :])
        length, end = automaton.match
        if not length:
            return (), 0
        drafts = tokens[end : end + num_tokens]
        period = len(tokens) - end
        while len(drafts) < num_tokens:  # the occurrence overlaps the end: the sequence repeats itself
            drafts.append(drafts[len(drafts) - period])
        return drafts, min(length, LONGEST_CONTEXT)

    def free(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that have ended."""
        for request_id in request_ids:
            self._automata.pop(request_id, None)
