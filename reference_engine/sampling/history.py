"""The tokens in a request's prompt and output, and their counts in the output, updated token by token."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenHistory:
    """The distinct tokens of one sequence, in order of first appearance. Sequences only grow.

    Args:
        prompt: token ids that count as seen but not as output; empty where no penalty needs them.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt)
        self._places = {token: place for place, token in enumerate(distinct)}
        room = len(distinct) + 64
        self._tokens = np.zeros(room, np.int64)
        self._counts = np.zeros(room, np.float32)
        self._tokens[: len(distinct)] = list(distinct)
        self._num_output = 0

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Distinct token ids."""
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Number of occurrences of each of them in the output."""
        return self._counts[: len(self._places)]

    def follow(self, token_ids: Sequence[int], prompt_len: int) -> None:
        """Counts the output tokens since the last call.

        Args:
            token_ids: the whole sequence.
            prompt_len: number of leading tokens that are not output.
        """
        for token in token_ids[prompt_len + self._num_output :]:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._tokens[place] = token
            self._counts[place] += 1
            self._num_output += 1
