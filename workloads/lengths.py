"""Empirical length distributions as quantile tables, sampled by inverting the table.

Real token lengths are bimodal and capped; no one-family fit of the conversation trace is nearer than a
Kolmogorov-Smirnov distance of 0.14, so the quantiles themselves are kept.
"""

from bisect import bisect_right

import msgspec

from workloads.rng import Rng


class Quantiles(msgspec.Struct, frozen=True):
    """A distribution by its quantiles.

    Attributes:
        levels: rising probabilities from 0 to 1.
        tokens: the length at each level.
    """

    levels: tuple[float, ...]
    tokens: tuple[int, ...]

    def at(self, p: float) -> float:
        """Length at probability ``p``, linear between the knots."""
        i = min(bisect_right(self.levels, p), len(self.levels) - 1)
        p0, p1 = self.levels[i - 1], self.levels[i]
        t0, t1 = self.tokens[i - 1], self.tokens[i]
        return t0 + (t1 - t0) * (p - p0) / (p1 - p0)

    def sample(self, rng: Rng) -> float:
        """One draw."""
        return self.at(rng.uniform())


# Quantiles of the first 40 minutes of the Azure LLM inference trace 2023, conversation (14,176 requests), CC-BY-4.0,
# Microsoft Azure: Patel et al., "Splitwise", ISCA 2024. Outputs have two modes (about 100 and 400) with under 1 % of
# the requests between 240 and 360: the two knots at 0.690 and 0.6901 keep that trough empty.
AZURE_CONVERSATION_INPUT = Quantiles(
    (0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95,
     0.99, 0.999, 1),
    (2, 31, 181, 220, 376, 388, 396, 402, 410, 437, 972, 1015, 1042, 1068, 1096, 1134, 1204, 1328, 2141, 4074, 4085,
     4121, 5294, 14050),
)  # fmt: skip
AZURE_CONVERSATION_OUTPUT = Quantiles(
    (0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.69, 0.6901, 0.75, 0.8, 0.85,
     0.9, 0.95, 0.99, 0.999, 1),
    (7, 16, 39, 50, 61, 72, 81, 87, 92, 97, 104, 115, 135, 160, 194, 240, 371, 393, 397, 410, 421, 448, 598, 939,
     1000),
)  # fmt: skip
