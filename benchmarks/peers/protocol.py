"""What every load generator is asked, and what it has to hand back."""

from pathlib import Path
from typing import Literal, Protocol

import msgspec

Endpoint = Literal["completions", "chat"]


class Load(msgspec.Struct, frozen=True):
    """One load to put on one server.

    Attributes:
        base_url: ``http://host:port``.
        tokenizer: folder with ``tokenizer.json``.
        requests: how many to send.
        output_tokens: wanted of each; the end of sequence is ignored.
        concurrency: requests kept in flight; None for an open loop.
        rate_per_s: mean rate of Poisson arrivals; None for a closed loop.
    """

    base_url: str
    tokenizer: Path
    requests: int
    output_tokens: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    endpoint: Endpoint = "completions"
    input_tokens: int = 64

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise ValueError("a load has either a concurrency or a rate")

    @property
    def path(self) -> str:
        """Of the endpoint, below the base URL."""
        return "/v1/completions" if self.endpoint == "completions" else "/v1/chat/completions"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool itself reported, in its own words as far as they fit; absent is None.

    Attributes:
        itl_of: what the tool's ITL is a distribution of.
        ok: requests that the tool counts as successful.
        duration_s: of its benchmark, by its own clock.
        planned_rate_per_s: of the schedule that it drew, where it says so.
    """

    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_mean_ms: float | None
    itl_p99_ms: float | None
    tpot_mean_ms: float | None
    ok: int
    failed: int | None
    duration_s: float | None
    output_tokens: int | None
    itl_of: Literal["gaps", "requests"] = "gaps"
    planned_rate_per_s: float | None = None


class Client(Protocol):
    """One load generator.

    Attributes:
        name: in tables.
        alone: it is a single process, which real-time priority suits; several on one core would starve each other.
        slow: give it fewer requests where only a rate is wanted.
    """

    name: str
    alone: bool
    slow: bool

    def command(self, load: Load, folder: Path) -> list[str]:
        """The command line that puts ``load`` on and leaves its results in ``folder``."""
        ...

    def environment(self) -> dict[str, str]:
        """What its process wants beside the inherited environment."""
        ...

    def figures(self, load: Load, folder: Path) -> Figures:
        """Read what it left.

        Raises:
            FileNotFoundError: it left nothing.
        """
        ...
