"""Observations that belong together, such as the gaps of one answer."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray


class Clusters:
    """Observations of some requests, one request after another.

    Attributes:
        values: float64, all observations.
        counts: int64, observations of each request, possibly none.
    """

    def __init__(self, values: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        self.values: npt.NDArray[np.float64] = values
        self.counts: npt.NDArray[np.int64] = counts

    @classmethod
    def of(cls, clusters: Iterable[Sequence[float]]) -> "Clusters":
        """From the observations of each request."""
        lists = [np.asarray(values, dtype=np.float64) for values in clusters]
        counts = np.array([len(values) for values in lists], dtype=np.int64)
        return cls(np.concatenate(lists) if lists else np.empty(0), counts)

    @cached_property
    def present(self) -> "Clusters":
        """Without requests that have no observation."""
        return Clusters(self.values, self.counts[self.counts > 0])

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of one number per observation, over each request; each must have one."""
        return np.add.reduceat(values, self._starts) if len(self.counts) else np.empty(0)

    def medians(self) -> NDArray[np.float64]:
        """Median of the observations of each request; each must have one."""
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        ordered = self.values[np.lexsort((self.values, owners))]
        low = ordered[self._starts + (self.counts - 1) // 2]
        high = ordered[self._starts + self.counts // 2]
        return (low + high) / 2

    @property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts) - self.counts
