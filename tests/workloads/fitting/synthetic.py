"""Traces drawn from known processes and distributions."""

from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Any

from bakeoff.workloads.arrivals import arrival
from bakeoff.workloads.distributions import Distribution
from bakeoff.workloads.fitting.starts import Arrivals, Starts
from bakeoff.workloads.rng import Rng, Seed
from bakeoff.workloads.traces.row import TraceRow

SEED = Seed.of("7")


class Rows:
    """A trace in memory."""

    def __init__(self, rows: Iterable[TraceRow]) -> None:
        self.trace_rows = list(rows)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        return iter(self.trace_rows)

    def notes(self) -> list[str]:
        return []


def starts_of(process: str, rate: float, options: dict[str, Any], count: int, seed: str = "3") -> list[float]:
    return list(islice(arrival(process, rate, options).offsets_s(seed), count))


def seen(starts_s: Iterable[float]) -> Arrivals:
    starts = Starts(Rng("ticks"))
    for at_s in starts_s:
        starts.add(at_s)
    arrivals = starts.done()
    assert arrivals is not None
    return arrivals


def single_turns(starts_s: Iterable[float], inputs: Distribution, outputs: Distribution) -> Rows:
    rng = Rng("single turns")
    return Rows(
        TraceRow(at_s, max(1, round(inputs.sample(rng))), max(2, round(outputs.sample(rng)))) for at_s in starts_s
    )


def sessions(
    starts_s: Iterable[float], turns: Distribution, first: Distribution, append: Distribution, think: Distribution
) -> Rows:
    """Sessions whose prompts grow by the last answer and the appended text; all share 256 tokens."""
    rng, rows = Rng("sessions"), list[TraceRow]()
    for number, start_s in enumerate(starts_s):
        at_s, held, blocks, last_s = start_s, 0, (1, 2, 3, 4), None
        for k in range(max(1, round(turns.sample(rng)))):
            input_tokens = held + max(1, round(append.sample(rng))) if k else 256 + round(first.sample(rng))
            output = 2 + rng.below(200)
            think_s = think.sample(rng) if last_s is not None else None
            at_s = at_s if last_s is None or think_s is None else last_s + think_s
            whole = input_tokens // 64
            blocks += tuple(number * 10_000 + 100 + place for place in range(len(blocks), whole))
            rows.append(TraceRow(at_s, input_tokens, output, f"s{number}", think_s, (*blocks, -number), 64))
            last_s, held = at_s + output / 50, input_tokens + output
    return Rows(sorted(rows, key=lambda row: row.at_s or 0.0))


def cumulated(gaps_s: Iterable[float]) -> list[float]:
    return list(accumulate(gaps_s, initial=0.0))
