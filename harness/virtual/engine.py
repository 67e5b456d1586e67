"""Model of a virtual engine: service times, faults, and noise between starts and trials."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from bakeoff.harness.virtual.draws import Batched, Draw, Fixed, PerToken, Service


class Fault(StrEnum):
    """A way in which an exchange fails. *Half* is half of its chunks, at least one."""

    REFUSED = "refused"
    """The connection is refused."""
    HTTP_429 = "http_429"
    """This status after a millisecond, without taking a slot; the same for the other two statuses."""
    HTTP_500 = "http_500"
    HTTP_503 = "http_503"
    RESET = "reset"
    """Half of the tokens; the connection is reset when the next ones are due."""
    ERROR_EVENT = "error_event"
    """Half of the tokens, then an error event and an orderly end."""
    TRUNCATED = "truncated"
    """All tokens and an orderly end, without a finish reason."""
    STALL = "stall"
    """Half of the tokens, then nothing; connection and slot stay occupied until the client drops the exchange."""
    SILENT = "silent"
    """A stall before the first byte."""
    EMPTY = "empty"
    """A finish reason and usage, but no token."""
    HTTP_401 = "http_401"
    """This status as for the others; a redirect with a status of its own."""
    HTTP_302 = "http_302"


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A crash of the engine's process: every exchange is reset, and nothing listens afterwards.

    Attributes:
        at_s: time of the crash after the engine was ready; or
        after_requests: crash at the arrival of this request of a start; 0 for a crash before it is ready; or
        beyond: crash when more requests than this are in flight.
        starts: starts of a run that crash, counted from 1; None for all.
        exit_status: of the process.
    """

    at_s: float | None = None
    after_requests: int | None = None
    beyond: int | None = None
    starts: tuple[int, ...] | None = None
    exit_status: int = 1

    def befalls(self, start: int) -> bool:
        """Whether it applies to this start."""
        return self.starts is None or start in self.starts

    def is_due(self, requests: int, in_flight: int) -> bool:
        """Whether a request that has just arrived causes the crash.

        Args:
            requests: requests of this start so far, including this one.
            in_flight: requests in flight, including this one.
        """
        return requests == self.after_requests or (self.beyond is not None and in_flight > self.beyond)


class VirtualEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a server: a FIFO queue, and slots that each serve one request at a time, or together in steps.

    Raises:
        ValueError: a value is out of range.
    """

    service: Service = PerToken(Fixed(0.05), Fixed(0.01))
    """Time that an answer takes once it has a slot."""
    slots: int | None = None
    """Concurrent answers; None for no limit."""
    tokens_per_chunk: int = 1
    """Tokens per chunk, which is sent when its last token is ready; the last chunk carries the remainder."""
    faults: Mapping[Fault, float] = {}
    """Fraction of requests that get each fault, 0 to 1; the sum is at most 1."""
    short_share: float = 0.0
    """Fraction of answers that are shorter than requested."""
    short_length: float = 0.5
    """Length of those as a fraction of the requested length; at least one token."""
    own_lengths: Draw | None = None
    """Law of the tokens, instead of seconds, of answers that the model ends by itself; None: none ends early."""
    deaths: tuple[Death, ...] = ()
    cache_block_tokens: int | None = None
    """Block size of a prefix cache, whose hits usage reports; None for no cache. Hits take as much time as misses,
    except in a batch."""
    cache_tokens: int | None = None
    """Size of that cache, in which requests in progress must have room; None for no limit."""
    kinds: str = ""
    """Kinds of the first tokens of chats, as in :class:`~bakeoff.harness.truth.Schedule`."""
    hidden_tokens: int = 0
    """Tokens of reasoning that the usage counts and no chunk shows."""
    dial_s: float = 0.0
    """Seconds to open one connection; connections are kept."""
    start_s: float = 1.0
    """Seconds from launch to ready."""
    slowdown: float = 1.0
    """Factor on every time."""
    start_noise: float = 0.0
    """Each start has its own factor on every time: exp of a normal draw with this standard deviation."""
    trial_noise: float = 0.0
    """The same for each trial."""
    trial_correlation: float = 0.0
    """Correlation between the draws of consecutive trials, as in a first-order autoregressive process."""
    aborts: bool = True
    """Whether a request that its client drops frees its slot at once; else it is served to its end."""

    @property
    def cache_config(self) -> dict[str, int | bool]:
        """What the reference engine tells of such a cache."""
        if self.cache_block_tokens is None:
            return {"enable_prefix_caching": False}
        size = {} if self.cache_tokens is None else {"num_blocks": self.cache_tokens // self.cache_block_tokens}
        blocks = {"block_size": self.cache_block_tokens, "hits_to_the_token": False}
        return {"enable_prefix_caching": True, **blocks, **size}

    def __post_init__(self) -> None:
        problem = next((message for valid, message in _checks(self) if not valid), None)
        if problem:
            raise ValueError(f"virtual engine: {problem}")


def _checks(engine: VirtualEngine) -> Iterator[tuple[bool, str]]:
    shares = engine.faults.values()
    yield all(share >= 0 for share in shares) and sum(shares) <= 1 + 1e-9, "shares of faults must add up to 0 to 1"
    yield engine.slots is None or engine.slots >= 1, "slots must be at least 1, or None"
    yield engine.cache_block_tokens is None or engine.cache_block_tokens >= 1, "cache_block_tokens must be at least 1"
    yield engine.cache_tokens is None or engine.cache_block_tokens is not None, "cache_tokens needs cache_block_tokens"
    yield engine.cache_tokens is None or engine.cache_tokens >= 1, "cache_tokens must be at least 1, or None"
    yield engine.tokens_per_chunk >= 1, "tokens_per_chunk must be at least 1"
    yield 0 <= engine.short_share <= 1, "short_share must be between 0 and 1"
    yield 0 < engine.short_length <= 1, "short_length must be above 0, at most 1"
    yield engine.slowdown > 0, "slowdown must be above 0"
    if isinstance(engine.service, Batched):
        parts_s = (engine.service.step_s, engine.service.row_s, engine.service.prompt_token_s)
        yield min(parts_s) >= 0 and sum(parts_s[:2]) > 0, "a step must take some time, and none of its parts below 0"
    yield -1 < engine.trial_correlation < 1, "trial_correlation must lie between -1 and 1"
    times_s = (engine.dial_s, engine.start_s, engine.start_noise, engine.trial_noise)
    yield all(value >= 0 for value in times_s), "dial_s, start_s and the noises must not be negative"
