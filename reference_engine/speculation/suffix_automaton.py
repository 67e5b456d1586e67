"""The longest suffix of a sequence that has occurred in it before, updated with each token.

A suffix automaton (Blumer et al., TCS 40, 1985) grows by one token in amortised constant time; for speculation:
SAM-Decoding, Hu et al., arXiv 2411.10666.
"""

from collections.abc import Iterable

_MOST_UPDATED = 16  # states; the longest contexts come first, shorter ones are hardly used


class SuffixAutomaton:
    """Recognises every part of a growing sequence of tokens."""

    def __init__(self) -> None:
        self._successors: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]  # of the longest string of each state
        self._ends = [0]  # tokens up to the latest occurrence of a state, except one at the very end
        self._last = 0
        self._length = 0
        self._match = 0, 0

    def __len__(self) -> int:
        return self._length

    @property
    def match(self) -> tuple[int, int]:
        """The longest suffix that occurs earlier: its length, and the tokens up to the end of that occurrence.

        The occurrence is the latest known one. The length is 0 if there is none.
        """
        return self._match

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        successors, links, lengths, ends = self._successors, self._links, self._lengths, self._ends
        self._length += 1
        new = self._add_state({}, self._length, self._length)
        state = self._last
        while state >= 0 and token not in successors[state]:
            successors[state][token] = new
            state = links[state]
        if state < 0:
            links[new] = 0
        else:
            target = successors[state][token]
            if lengths[target] != lengths[state] + 1:
                target = self._split(state, token, target)
            links[new] = target
        self._last = new
        link = links[new]
        self._match = lengths[link], ends[link]
        for _ in range(_MOST_UPDATED):
            if link <= 0:
                break
            ends[link] = self._length
            link = links[link]

    def _split(self, state: int, token: int, target: int) -> int:
        """A state for the shorter strings of `target`, which occur in more places than the longer ones."""
        successors, links = self._successors, self._links
        clone = self._add_state(dict(successors[target]), self._lengths[state] + 1, self._ends[target])
        links[clone], links[target] = links[target], clone
        while state >= 0 and successors[state].get(token) == target:
            successors[state][token] = clone
            state = links[state]
        return clone

    def _add_state(self, successors: dict[int, int], length: int, end: int) -> int:
        self._successors.append(successors)
        self._links.append(0)
        self._lengths.append(length)
        self._ends.append(end)
        return len(self._links) - 1
