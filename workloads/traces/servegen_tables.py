"""ServeGen's files: for each client, a table of arrival windows and a table of length distributions."""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import msgspec

from bakeoff.workloads.rng import Rng
from bakeoff.workloads.traces.checks import amount, number, quoted, tokens
from bakeoff.workloads.traces.reading import bad, decoded, lines, whole

_TRACE = re.compile(r"chunk-(.+)-trace\.csv(\.gz)?")
_WINDOW_S = 600.0
_LEAST_SHAPE, _MOST_SHAPE = 0.01, 1e6
_PROBABILITY_SLACK = 0.01


class Window(msgspec.Struct, frozen=True):
    """A time window in which a client's requests are a renewal process.

    Attributes:
        start_s: start, in seconds from the beginning of the recording.
        end_s: start of the next window.
        rate_per_s: requests per second; may be 0.
        family: distribution of the gaps, ``Gamma`` or ``Weibull``; empty for exponential gaps.
        shape: of that distribution; the rate determines its scale.
    """

    start_s: float
    end_s: float
    rate_per_s: float
    family: str
    shape: float

    def between(self, start_s: float, end_s: float) -> "Window | None":
        """The part of the window between ``start_s`` and ``end_s``; None if empty."""
        cut = msgspec.structs.replace(self, start_s=max(start_s, self.start_s), end_s=min(end_s, self.end_s))
        return cut if cut.start_s < cut.end_s else None

    def gap(self, rng: Rng) -> float:
        """A gap between two arrivals, in units of the mean gap."""
        if self.family == "Gamma":
            return rng.gamma(self.shape) / self.shape
        if self.family == "Weibull":
            return rng.weibull(self.shape) / math.gamma(1 + 1 / self.shape)
        return rng.exponential(1.0)

    def first_gap(self, rng: Rng) -> float:
        """Residual gap at a random moment, in units of the mean gap.

        It is a uniform fraction of a length-biased gap: Gamma with a shape one larger, or for Weibull the power of a
        Gamma draw. Starting with a full gap instead would give bursty clients ``(CV² − 1) / 2`` requests too many.
        """
        if self.family == "Gamma":
            biased = rng.gamma(self.shape + 1) / self.shape
        elif self.family == "Weibull":
            biased = rng.gamma(1 + 1 / self.shape) ** (1 / self.shape) / math.gamma(1 + 1 / self.shape)
        else:
            return rng.exponential(1.0)
        return rng.uniform() * biased


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of token counts."""

    values: tuple[int, ...]
    cumulative: tuple[float, ...]

    def sample(self, rng: Rng) -> int:
        """One draw."""
        return self.values[
            min(bisect_right(self.cumulative, rng.uniform() * self.cumulative[-1]), len(self.values) - 1)
        ]


class Client(msgspec.Struct, frozen=True):
    """One client's files.

    Attributes:
        name: text between ``chunk-`` and ``-trace`` in the file name.
        trace: the table of windows.
        dataset: the length distributions.
    """

    name: str
    trace: Path
    dataset: Path


def clients(path: str) -> list[Client]:
    """The clients in a folder, sorted by name.

    Raises:
        BadTrace: the folder does not exist or has no client, or a client has no length distributions.
    """
    folder = Path(path)
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise bad(path, None, f"{problem}; give a folder of chunk-*-trace.csv and chunk-*-dataset.json")
    by_name = dict[str, Client]()
    for trace in sorted(folder.iterdir()):
        if match := _TRACE.fullmatch(trace.name):
            name = match[1]
            candidates = [folder / f"chunk-{name}-dataset.json{suffix}" for suffix in ("", ".gz")]
            dataset = next((file for file in candidates if file.exists()), None)
            if dataset is None:
                raise bad(trace, None, f"has no length distributions beside it; fetch {candidates[0].name} too")
            by_name.setdefault(name, Client(name, trace, dataset))
    if not by_name:
        raise bad(path, None, "has no client (chunk-*-trace.csv)")
    return [by_name[name] for name in sorted(by_name)]


def windows(client: Client) -> list[Window]:
    """A client's windows, in order.

    Raises:
        BadTrace: a row does not have six valid fields, or a window does not begin after the previous one.
    """
    rows = list[tuple[float, float, str, float]]()
    for row, line in lines(str(client.trace)):
        try:
            rows.append(_window(line.decode(), rows[-1][0] if rows else -1.0))
        except ValueError as cause:
            raise bad(client.trace, row, str(cause)) from None
    ends_s = [start_s for start_s, *_ in rows[1:]]
    last_s = rows[-1][0] - rows[-2][0] if len(rows) > 1 else _WINDOW_S
    return [Window(row[0], end_s, *row[1:]) for row, end_s in zip(rows, [*ends_s, rows[-1][0] + last_s], strict=True)]


def _window(line: str, last_s: float) -> tuple[float, float, str, float]:
    """Parse start, rate, family and shape of a row after a window that starts at ``last_s``."""
    fields = line.split(",")
    if len(fields) != 6:
        raise ValueError(f"has {len(fields)} fields, not start, rate, CV, family, shape, scale")
    start_s, rate_per_s = amount(fields[0], "start"), amount(fields[1], "rate")
    if start_s <= last_s:
        raise ValueError("does not begin after the previous window; sort the file by its first column")
    return start_s, rate_per_s, *_distribution(fields[3].strip(), fields[4], rate_per_s)


def _distribution(family: str, shape: str, rate_per_s: float) -> tuple[str, float]:
    if rate_per_s == 0 or not family:
        return "", 1.0
    if family not in ("Gamma", "Weibull"):
        raise ValueError(f"family {quoted(family)} must be Gamma, Weibull or empty")
    value = number(shape, "shape")
    if not _LEAST_SHAPE <= value <= _MOST_SHAPE:
        raise ValueError(f"shape must be from {_LEAST_SHAPE} to {_MOST_SHAPE:g}, not {quoted(shape)}")
    return family, value


class _Texts(msgspec.Struct, frozen=True):
    """Two Python dictionaries as text, ``{tokens: probability}``."""

    input_tokens: str
    output_tokens: str

    def empty(self) -> bool:
        return "{}" in (self.input_tokens.strip(), self.output_tokens.strip())


_DATASET = msgspec.json.Decoder(dict[str, _Texts])


class LengthTables:
    """A client's length distributions over time, with one window in memory."""

    def __init__(self, client: Client) -> None:
        self._file = client.dataset
        self._keys = [key for _, key in sorted(self._filled(self._read()))]
        self._starts_s = [float(key) for key in self._keys]
        self._now: tuple[int, Lengths, Lengths] | None = None

    def __bool__(self) -> bool:
        """Whether there is any distribution."""
        return bool(self._keys)

    def at(self, time_s: float) -> tuple[Lengths, Lengths]:
        """Input and output lengths of the window at ``time_s``, or of the nearest before, or of the first after."""
        i = max(0, bisect_right(self._starts_s, time_s) - 1)
        if self._now is None or self._now[0] != i:
            texts = self._read()[self._keys[i]]
            self._now = (i, self._table(i, texts.input_tokens, 1), self._table(i, texts.output_tokens, 0))
        return self._now[1:]

    def _read(self) -> dict[str, _Texts]:
        return decoded(self._file, None, whole(self._file), _DATASET)

    def _filled(self, texts: dict[str, _Texts]) -> Iterator[tuple[float, str]]:
        for key, text in texts.items():
            try:
                start_s = amount(key, "window")
            except ValueError as cause:
                raise bad(self._file, f"window {quoted(key)}", str(cause)) from None
            if not text.empty():
                yield start_s, key

    def _table(self, i: int, text: str, least: int) -> Lengths:
        try:
            return _lengths(text, least)
        except ValueError as cause:
            raise bad(self._file, f"window {self._keys[i]}", str(cause)) from None


def _lengths(text: str, least: int) -> Lengths:
    """Parse ``{tokens: probability, …}``. Entries of 0 tokens, if ``least`` allows them, are failures and left out."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise ValueError(f"{quoted(text)} is not a table {{tokens: probability}}")
    pairs = list[tuple[int, float]]()
    for item in body[1:-1].split(","):
        value, colon, share = item.partition(":")
        if not colon:
            raise ValueError(f"{quoted(item)} is not tokens: probability")
        pairs.append((tokens(value, "tokens", least), amount(share, "probability")))
    total = math.fsum(share for _, share in pairs)
    if abs(total - 1) > _PROBABILITY_SLACK:
        raise ValueError(f"the probabilities add up to {total:g}, not 1")
    positive = [(value, share) for value, share in pairs if value and share]
    if not positive:
        raise ValueError("no answer is longer than 0 tokens")
    return Lengths(tuple(value for value, _ in positive), tuple(accumulate(share for _, share in positive)))
