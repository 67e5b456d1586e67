"""Rows of scores, cut into blocks, so that most of a vocabulary is read once and never copied or sorted.

The expensive passes run on the scores' own device, over all rows at once; NumPy processes their small results.
"""

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

BLOCK = 64  # tokens; vocabularies are mostly multiples of it, and 768 maxima of 49,152 tokens are cheap to sort


class BlockedScores:
    """Scores of several rows.

    Args:
        scores: float32 [num_rows, vocab_size], contiguous; not changed.

    Attributes:
        vocab_size: tokens in a row.
        maxima: the largest score of each block: [num_rows, num_blocks].
        top: the largest score of each row: [num_rows, 1].
    """

    def __init__(self, scores: torch.Tensor) -> None:
        missing = -scores.shape[1] % BLOCK
        padded = torch.nn.functional.pad(scores, (0, missing), value=float("-inf")) if missing else scores
        self.vocab_size: int = scores.shape[1]
        self._blocks = padded.view(len(scores), -1, BLOCK)
        self._rows = np.arange(len(scores))
        self.maxima: NDArray[np.float32] = self._blocks.amax(dim=-1).cpu().numpy()
        self.top = self.maxima.max(axis=-1, keepdims=True)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def of(self, rows: NDArray[np.int64]) -> Self:
        """The same scores, restricted to these rows, which ascend; nothing is copied."""
        if len(rows) == self.num_rows:
            return self
        part = object.__new__(type(self))
        part.vocab_size, part._blocks, part._rows = self.vocab_size, self._blocks, self._rows[rows]
        part.maxima, part.top = self.maxima[rows], self.top[rows]
        return part

    def take(self, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores of single blocks: [num_taken, BLOCK]; positions after the vocabulary hold minus infinity."""
        device, rows = self._blocks.device, self._rows[rows]
        if device.type == "cpu":
            return self._blocks.numpy()[rows, blocks]  # 25 µs for 2,048 blocks; torch's own takes ten times as long
        return self._blocks[torch.from_numpy(rows).to(device), torch.from_numpy(blocks).to(device)].cpu().numpy()

    def row(self, row: int) -> NDArray[np.float32]:
        """All scores of one row: [vocab_size]."""
        return self._blocks[int(self._rows[row])].reshape(-1)[: self.vocab_size].cpu().numpy()

    def weights(self, temperatures: NDArray[np.float64]) -> NDArray[np.float64]:
        """Each block's share of the softmax, not divided by the sum: the most likely token has 1.

        Args:
            temperatures: [num_rows], above 0.

        Returns:
            [num_rows, num_blocks].
        """
        device = self._blocks.device
        shift = torch.from_numpy(self.top).to(device)[:, :, None]
        rate = torch.from_numpy((1.0 / temperatures).astype(np.float32)).to(device)[:, None, None]
        is_all = len(self._rows) == len(self._blocks)
        chosen = self._blocks if is_all else self._blocks[torch.from_numpy(self._rows).to(device)]
        return (chosen - shift).mul_(rate).exp_().sum(dim=-1).cpu().numpy().astype(np.float64)
