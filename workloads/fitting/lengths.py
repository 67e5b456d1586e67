"""Lengths, pauses and turns of sessions, for a trace's rows and for drawn traffic alike."""

from collections.abc import Sequence

from bakeoff.workloads.fitting.samples import Floats, Sample, spearman

Step = tuple[int, int, float | None]
"""Input tokens, output tokens, and seconds since the session's previous answer (None if unknown)."""


class Lengths:
    """Statistics of sessions, in bounded memory.

    Attributes:
        requests: input and output tokens of every request.
        first: input and output tokens of each session's first request.
        later: appended and output tokens of later requests whose prompt extends the previous one.
        think_s: seconds before later requests, if known.
        turns: requests per session.
        shrunk: number of later requests whose prompt is not longer than the previous one.
        overlapping: number of later requests whose prompt grew by less than the previous answer.
    """

    def __init__(self) -> None:
        self.requests = Sample(2)
        self.first = Sample(2)
        self.later = Sample(2)
        self.think_s = Sample()
        self.turns = Sample()
        self.shrunk = 0
        self.overlapping = 0

    def add(self, steps: Sequence[Step]) -> None:
        """Add a session of at least one request."""
        self.turns.add((len(steps),))
        last_input, last_output, _ = steps[0]
        self.first.add((last_input, last_output))
        self.requests.add((last_input, last_output))
        for input_tokens, output_tokens, think_s in steps[1:]:
            self.requests.add((input_tokens, output_tokens))
            if think_s is not None:
                self.think_s.add((think_s,))
            if input_tokens > last_input:
                appended = input_tokens - last_input - last_output
                self.overlapping += appended < 1
                self.later.add((max(1, appended), output_tokens))
            else:
                self.shrunk += 1
            last_input, last_output = input_tokens, output_tokens

    @property
    def later_count(self) -> int:
        """Number of requests that are not the first of their session."""
        return len(self.requests) - len(self.first)

    def samples(self) -> dict[str, Floats]:
        """Samples of lengths, pauses and turns; empty ones are left out."""
        samples = {
            "input": self.requests.column(0),
            "output": self.requests.column(1),
            "first_input": self.first.column(0),
            "append": self.later.column(0),
            "think_s": self.think_s.column(),
            "turns": self.turns.column(),
        }
        return {name: values for name, values in samples.items() if values.size}

    def means(self) -> dict[str, float]:
        """Exact means, named as in a workload profile; ``input_per_output`` is a ratio of sums."""
        input_mean, output_mean = self.requests.mean(0), self.requests.mean(1)
        means = {
            "input_mean": input_mean,
            "output_mean": output_mean,
            "input_per_output": input_mean / output_mean,
            "turns_mean": self.turns.mean(),
        }
        if len(self.later):
            means["append_mean"] = self.later.mean(0)
        if len(self.think_s):
            means["think_mean_s"] = self.think_s.mean()
        return means

    def correlation(self) -> float:
        """Spearman's correlation of the new tokens of a prompt (first input or appended) with its answer."""
        first, later = len(self.first), len(self.later)
        parts = [(spearman(sample.column(0), sample.column(1)), len(sample)) for sample in (self.first, self.later)]
        return sum(value * weight for value, weight in parts) / (first + later)
