"""Base of the fake engines: a script of tokens and times, faults on request, and a port. Independent of any protocol.

Each fake follows the engine's protocol file byte for byte. Fakes run inside a test (:func:`running`) or as a program
(:func:`serve`) that a launcher can start, stop and kill.
"""

import asyncio
import collections
import contextlib
import copy
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
from aiohttp import web

EOS_ID = 2
WORDS = ("Paris", "is", "the", "capital", "of", "France", "and", "naïve", "cafés", "open", "early")


class Token(msgspec.Struct, frozen=True):
    """One generated token."""

    id: int
    text: str
    logprob: float = -0.5
    special: bool = False


class Script(msgspec.Struct, frozen=True):
    """What a fake generates, and when.

    Attributes:
        ttft_s: from the request to the first token.
        gap_s: between tokens.
        natural_length: tokens after which the "model" ends by itself, unless the length is forced; 0 for never.
        group: tokens in one chunk, as with speculation or a stream interval.
    """

    ttft_s: float = 0.0
    gap_s: float = 0.0
    natural_length: int = 0
    group: int = 1

    def tokens(self, wanted: int, *, forced: bool = False) -> list[Token]:
        """The answer: ``wanted`` tokens, or fewer if the model ends first and is allowed to."""
        ends = self.natural_length and self.natural_length < wanted and not forced
        count = self.natural_length - 1 if ends else wanted
        tokens = [Token(100 + i, f" {WORDS[i % len(WORDS)]}") for i in range(count)]
        return [*tokens, Token(EOS_ID, "</s>", special=True)] if ends else tokens

    def groups(self, tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
        """The tokens, divided into chunks."""
        for start in range(0, len(tokens), self.group):
            yield tokens[start : start + self.group]

    async def paced(self, tokens: Sequence[Token]) -> AsyncIterator[Sequence[Token]]:
        """The chunks at their times."""
        for number, group in enumerate(self.groups(tokens)):
            await asyncio.sleep(self.gap_s * len(group) if number else self.ttft_s)
            yield group


_RUNNING: list[tuple["Fake", dict[str, Any]]] = []
"""The running fakes, and how they began."""
_IN_PROGRESS = {"open", "running", "deferred", "_waiting"}


class Fake:
    """Base of the fakes.

    Attributes:
        script: what it generates.
        faults: names of its faults; each fake lists those that it knows.
        bodies: every request body so far, in order, for tests to check.
        open: answers in progress.
        dropped: answers whose client hung up.
    """

    def __init__(self, script: Script = Script(), faults: Sequence[str] = ()) -> None:  # noqa: B008
        self.script = script
        self.faults = set(faults)
        self.bodies: list[dict] = []
        self.open = 0
        self.dropped = 0

    def routes(self) -> list[web.RouteDef]:
        """The routes of the fake."""
        raise AssertionError("a fake has routes")

    def app(self) -> web.Application:
        """The application with the fake's routes, including /health and the like."""
        made = web.Application(client_max_size=1 << 26)
        made.add_routes(self.routes())
        return made

    @contextlib.asynccontextmanager
    async def stream(self, request: web.Request, **headers: str) -> AsyncGenerator[web.StreamResponse]:
        """An event stream: ``await response.write(b"data: …\\n\\n")``; a client that hangs up is counted."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", **headers})
        self.open += 1
        try:
            await response.prepare(request)
            yield response
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            self.dropped += 1
            raise
        finally:
            self.open -= 1


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event with JSON (or a text as it is), and an ``event:`` line if it has a name."""
    payload = data.encode() if isinstance(data, str) else msgspec.json.encode(data)
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + payload + b"\n\n"


@contextlib.asynccontextmanager
async def running(fake: Fake, port: int = 0) -> AsyncGenerator[str]:
    """Serve the fake on a port of 127.0.0.1; yields its base URL."""
    runner = web.AppRunner(fake.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    begun = fake, _state(fake)
    _RUNNING.append(begun)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        _RUNNING.remove(begun)
        await runner.cleanup()


def start_over() -> None:
    """Let the running fakes forget what they were sent and counted; answers in progress go on."""
    for fake, state in _RUNNING:
        vars(fake).update(copy.deepcopy(state))


def _state(fake: Fake) -> dict[str, Any]:
    kept = (int, float, str, list, dict, set, collections.deque)
    return {
        name: copy.deepcopy(value)
        for name, value in vars(fake).items()
        if isinstance(value, kept) and name not in _IN_PROGRESS
    }


def serve(fake: Fake, port: int) -> None:
    """Run the fake as this process until SIGINT or SIGTERM."""

    async def main() -> None:
        done = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, done.set)
        async with running(fake, port):
            await done.wait()

    asyncio.run(main())
