"""The interface of load generators: the load that they send, and the figures that they report."""

from pathlib import Path
from typing import Literal, Protocol

import msgspec

Endpoint = Literal["completions", "chat"]


class Load(msgspec.Struct, frozen=True):
    """One load for one server.

    Attributes:
        base_url: ``http://host:port``.
        tokenizer: folder with ``tokenizer.json``.
        requests: how many to send.
        output_tokens: of each answer; the end of sequence is ignored.
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
        """Path of the endpoint, below the base URL."""
        return "/v1/completions" if self.endpoint == "completions" else "/v1/chat/completions"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a tool reported by its own definitions; None if it does not report one.

    Attributes:
        itl_of: whether the tool's ITL is a distribution of gaps or of means per request.
        ok: requests that the tool counts as successful.
        duration_s: of the tool's benchmark, by its own clock.
        planned_rate_per_s: mean rate of the schedule that the tool drew.
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
        name: name in tables.
        alone: whether it is a single process, which may have real-time priority; several would starve each other.
        slow: whether it gets fewer requests in scenarios that only measure a rate.
    """

    name: str
    alone: bool
    slow: bool

    def command(self, load: Load, folder: Path) -> list[str]:
        """The command line that sends ``load`` and writes the results to ``folder``."""
        ...

    def environment(self) -> dict[str, str]:
        """Environment variables that its process needs beside the inherited ones."""
        ...

    def figures(self, load: Load, folder: Path) -> Figures:
        """Read the figures from its results.

        Raises:
            FileNotFoundError: it wrote no results.
        """
        ...
