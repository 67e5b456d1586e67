"""What a virtual engine is: how long it takes, what goes wrong, and how its starts and trials differ."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from harness.virtual.draws import Fixed, PerToken, Service


class Fault(StrEnum):
    """A way in which an exchange goes wrong. *Half* is half of its chunks, at least one."""

    REFUSED = "refused"
    """Nothing listens."""
    HTTP_429 = "http_429"
    """After a millisecond, without taking a slot; as the other two statuses."""
    HTTP_500 = "http_500"
    HTTP_503 = "http_503"
    RESET = "reset"
    """Half of the tokens; the connection is reset when the next ones are due."""
    ERROR_EVENT = "error_event"
    """Half of the tokens, then an error event and an orderly end."""
    TRUNCATED = "truncated"
    """All tokens and an orderly end, without a finish reason."""
    STALL = "stall"
    """Half of the tokens, then nothing; the connection stays open and the slot taken until the client gives up."""
    SILENT = "silent"
    """Never a byte; otherwise as a stall."""
    EMPTY = "empty"
    """A finish reason and usage, and not one token."""


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the engine's process: every exchange is reset, and nothing listens any more.

    Attributes:
        at_s: so long after it was ready; or
        after_requests: at the arrival of this request of a start. 0: it ends before it is ready.
        beyond: or when more requests than this are under way.
        starts: in which starts of a run, counted from 1; None for all.
        exit_status: of the process.
    """

    at_s: float | None = None
    after_requests: int | None = None
    beyond: int | None = None
    starts: tuple[int, ...] | None = None
    exit_status: int = 1

    def befalls(self, start: int) -> bool:
        """Whether it is for this start."""
        return self.starts is None or start in self.starts

    def is_due(self, requests: int, under_way: int) -> bool:
        """Whether it comes with a request that has just arrived.

        Args:
            requests: of this start so far, that one included.
            under_way: likewise.
        """
        return requests == self.after_requests or (self.beyond is not None and under_way > self.beyond)


class VirtualEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a server: a queue in the order of arrival, and slots that each serve one request at a time.

    Raises:
        ValueError: a value is out of range.
    """

    service: Service = PerToken(Fixed(0.05), Fixed(0.01))
    """How long an answer takes once it has a slot."""
    slots: int | None = None
    """Answers at a time; None: any number, so that nothing waits."""
    tokens_per_chunk: int = 1
    """A chunk leaves when its last token is ready; the last chunk carries what is left."""
    faults: Mapping[Fault, float] = {}
    """Share of the requests that each fault befalls, 0 to 1; the sum is at most 1."""
    short_share: float = 0.0
    """Share of the answers that are shorter than asked."""
    short_length: float = 0.5
    """How long those are, as a share of the length asked; at least one token."""
    deaths: tuple[Death, ...] = ()
    cache_block_tokens: int | None = None
    """Size of the blocks of a prefix cache, whose hits usage tells; None: there is no cache."""
    dial_s: float = 0.0
    """To open one connection; connections are kept."""
    start_s: float = 1.0
    """From launch to ready."""
    slowdown: float = 1.0
    """Factor on every time."""
    start_noise: float = 0.0
    """Each start has a factor of its own on every time: exp of a normal draw with this standard deviation."""
    trial_noise: float = 0.0
    """Each trial likewise."""
    trial_correlation: float = 0.0
    """Between the draws of trials that follow each other, as in a first-order autoregressive process."""
    aborts: bool = True
    """Whether a request that its client gives up frees its slot at once; else it is served to its end."""

    def __post_init__(self) -> None:
        complaint = next((text for good, text in _checks(self) if not good), None)
        if complaint:
            raise ValueError(f"virtual engine: {complaint}")


def _checks(engine: VirtualEngine) -> Iterator[tuple[bool, str]]:
    shares = engine.faults.values()
    yield all(share >= 0 for share in shares) and sum(shares) <= 1 + 1e-9, "shares of faults must add up to 0 to 1"
    yield engine.slots is None or engine.slots >= 1, "slots must be at least 1, or None"
    yield engine.cache_block_tokens is None or engine.cache_block_tokens >= 1, "cache_block_tokens must be at least 1"
    yield engine.tokens_per_chunk >= 1, "tokens_per_chunk must be at least 1"
    yield 0 <= engine.short_share <= 1, "short_share must be between 0 and 1"
    yield 0 < engine.short_length <= 1, "short_length must be above 0, at most 1"
    yield engine.slowdown > 0, "slowdown must be above 0"
    yield -1 < engine.trial_correlation < 1, "trial_correlation must lie between -1 and 1"
    times_s = (engine.dial_s, engine.start_s, engine.start_noise, engine.trial_noise)
    yield all(value >= 0 for value in times_s), "dial_s, start_s and the noises must not be negative"
