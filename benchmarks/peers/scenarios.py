"""The loads that every client sends, and traps: answers that clients misread."""

from pathlib import Path

import msgspec

from bakeoff.harness.truth import Fault, Schedule
from benchmarks.peers.protocol import Client, Load

LEVELS = (8, 64, 256, 512)
"""Streams of the paced loads."""


class Scenario(msgspec.Struct, frozen=True):
    """One load on one schedule.

    Attributes:
        slow_requests: number of requests of a slow client, if only a rate is measured.
        only_fast: whether slow clients are left out, because they are far from this limit.
    """

    name: str
    schedule: Schedule
    load: Load
    slow_requests: int | None = None
    only_fast: bool = False

    def load_of(self, client: Client) -> Load:
        """The load with this client's number of requests."""
        if not client.slow or self.slow_requests is None:
            return self.load
        return msgspec.structs.replace(self.load, requests=self.slow_requests)


def measured(tokenizer: Path) -> list[Scenario]:
    """Paced streams, capacity, one-token answers and an open loop."""
    return [*(_paced(tokenizer, streams) for streams in LEVELS), *_capacity(tokenizer), _poisson(tokenizer)]


def _paced(tokenizer: Path, streams: int) -> Scenario:
    schedule = _schedule(ttft_s=0.05, itl_s=0.01 if streams == LEVELS[0] else 0.02)
    load = Load(
        "", tokenizer, requests=6 * streams if streams > LEVELS[0] else 64, output_tokens=64, concurrency=streams
    )
    return Scenario(f"paced-{streams}", schedule, load)


def _capacity(tokenizer: Path) -> list[Scenario]:
    """Loads as fast as the server and the client allow."""
    at_once = _schedule(ttft_s=0, itl_s=0)
    bundled = _schedule(ttft_s=0, itl_s=0, events_per_write=8)
    at_64 = Load("", tokenizer, requests=4096, output_tokens=128, concurrency=64)
    at_256 = msgspec.structs.replace(at_64, concurrency=256)
    more = msgspec.structs.replace(at_64, requests=8192)
    short = msgspec.structs.replace(at_64, requests=16384, output_tokens=1)
    return [
        Scenario("capacity-64", at_once, at_64, 512),
        Scenario("capacity-256", at_once, at_256, 1024),
        Scenario("capacity-64-by-8", bundled, more, 512, only_fast=True),
        Scenario("one-token", at_once, short, 2048),
    ]


def _poisson(tokenizer: Path) -> Scenario:
    load = Load("", tokenizer, requests=2000, output_tokens=4, rate_per_s=500)
    return Scenario("poisson-500", _schedule(ttft_s=0.05, itl_s=0.005), load)


def traps(tokenizer: Path) -> list[Scenario]:
    """Chat answers that follow the protocol, or fail as real servers do, but that clients misread."""
    chat = Load("", tokenizer, requests=64, output_tokens=16, concurrency=8, endpoint="chat")
    many = msgspec.structs.replace(chat, requests=200)
    plain = _schedule(ttft_s=0.2, itl_s=0.01)
    return [
        Scenario("plain", plain, chat),
        Scenario("early role chunk", msgspec.structs.replace(plain, role_chunk="early"), chat),
        Scenario("empty finish chunk", msgspec.structs.replace(plain, finish_chunk=True), chat),
        Scenario("lone comments", msgspec.structs.replace(plain, comments=True), chat),
        Scenario("error events", msgspec.structs.replace(plain, faults={Fault.ERROR_EVENT: 0.1}), many),
    ]


def _schedule(ttft_s: float, itl_s: float, events_per_write: int = 1) -> Schedule:
    """A schedule without the empty finish chunk, which is one of the traps."""
    return Schedule(ttft_s=ttft_s, itl_s=itl_s, events_per_write=events_per_write, finish_chunk=False)
