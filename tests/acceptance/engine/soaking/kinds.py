"""The actions of the soak's users, valid and invalid; each returns the status of its answer."""

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from tests.acceptance.engine.soaking import bodies
from tests.acceptance.engine.soaking.client import CHAT, TEXT, Client, WrongAnswer, check_stream, check_whole, status_of

BIG_MEBIBYTES = 65  # the server accepts bodies of up to 64
READ_BYTES = 256


async def whole(client: Client, rng: random.Random) -> int:
    path, body = bodies.generation(rng)
    status, answer = await client.ask("POST", path, body)
    if status == 200:
        check_whole(answer, bodies.num_choices(body))
    return status


async def stream(client: Client, rng: random.Random) -> int:
    path, body = bodies.generation(rng)
    status, answer = await client.ask("POST", path, body | {"stream": True})
    if status == 200:
        check_stream(answer, bodies.num_choices(body))
    return status


async def several(client: Client, rng: random.Random) -> int:
    """Send several prompts, for two answers each out of three candidates."""
    body = {"prompt": [bodies.prompt(rng), bodies.words(rng, 40)], "n": 2, "best_of": 3, "max_tokens": 12}
    status, answer = await client.ask("POST", TEXT, body)
    if status == 200:
        check_whole(answer, 4)
    return status


async def guided(client: Client, rng: random.Random) -> int:
    """Guide the answer by a pattern, a choice, or a JSON schema that the server has not seen before."""
    name = f"field_{rng.getrandbits(32):08x}"
    schema = {"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]}
    guide, pattern = rng.choice(
        [
            ({"guided_regex": "[0-9]{3}-[a-z]{2}"}, "[0-9]{3}-[a-z]{2}"),
            ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
            ({"guided_json": schema | {"additionalProperties": False}}, rf'\{{\s*"{name}"\s*:\s*(true|false)\s*\}}'),
        ]
    )
    body = {"messages": bodies.HELLO, "max_tokens": 64, "temperature": rng.choice([0, 1])}
    status, answer = await client.ask("POST", CHAT, body | guide)
    if status == 200:
        (choice,) = check_whole(answer, 1)
        if choice["finish_reason"] == "stop" and not re.fullmatch(pattern, choice["message"]["content"]):
            raise WrongAnswer(f"{guide} gave {choice['message']['content']!r}")
    return status


async def leave_stream(client: Client, rng: random.Random) -> int:
    """Read a stream for a while, then disconnect."""
    path, body = bodies.generation(rng, max_tokens=150)
    async with client.open(path, body | {"stream": True}) as answer:
        try:
            async with asyncio.timeout(rng.expovariate(1.0)):
                await answer.read()
        except TimeoutError:
            pass
        return answer.status


async def leave_whole(client: Client, rng: random.Random) -> int | None:
    """Disconnect, mostly before there is an answer."""
    path, body = bodies.generation(rng, max_tokens=150)
    try:
        async with asyncio.timeout(rng.expovariate(2.0)):
            return (await client.ask("POST", path, body))[0]
    except TimeoutError:
        return None


async def read_slowly(client: Client, rng: random.Random) -> int | None:
    """Read a stream a few bytes at a time, then as fast as it comes, sometimes not to its end."""
    path, body = bodies.generation(rng, max_tokens=100)
    data = json.dumps(body | {"stream": True, "ignore_eos": True}).encode()
    async with client.connection() as (reader, writer):
        writer.write(client.head(path, len(data)) + data)
        status = await status_of(reader)
        for _ in range(rng.randint(1, 40)):
            if not await reader.read(READ_BYTES):
                return status
            await asyncio.sleep(rng.uniform(0.01, 0.2))
        while rng.random() < 0.99 and await reader.read(READ_BYTES):
            pass
        return status


async def send_slowly(client: Client, rng: random.Random) -> int | None:
    """Send a body in pieces."""
    path, body = bodies.generation(rng, max_tokens=4)
    data = json.dumps(body).encode()
    async with client.connection() as (reader, writer):
        writer.write(client.head(path, len(data)))
        for start in range(0, len(data), 100):
            await asyncio.sleep(rng.uniform(0, 0.1))
            writer.write(data[start : start + 100])
        return await status_of(reader)


async def break_off(client: Client, rng: random.Random) -> None:
    """Send a part of a head or of a body, then reset the connection."""
    head = client.head(TEXT, 1000)
    data = head[: rng.randint(1, len(head))] if rng.random() < 0.3 else head + b'{"prompt": "' + b"x" * 500
    async with client.connection() as (_, writer):
        writer.write(data)
        await asyncio.sleep(rng.uniform(0, 0.3))


async def talk_nonsense(client: Client, rng: random.Random) -> int | None:
    """Send bytes that are not HTTP."""
    async with client.connection() as (reader, writer):
        writer.write(b"\x16\x03" + rng.randbytes(40) + b"\r\n\r\n")
        return await status_of(reader)


async def mistake(client: Client, rng: random.Random) -> int:
    path, body = bodies.mistake(rng)
    return (await client.ask("POST", path, body))[0]


async def too_long(client: Client, rng: random.Random) -> int:
    path, body = bodies.too_long(rng)
    return (await client.ask("POST", path, body))[0]


async def too_big(client: Client, rng: random.Random) -> int | None:
    """Send too large a body; the server may answer, or close the connection before the body ends."""

    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(BIG_MEBIBYTES):
            yield b" " * (1 << 20)

    try:
        return (await client.ask("POST", TEXT, pieces()))[0]
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
        return None


async def unknown(client: Client, rng: random.Random) -> int:
    """Request an unknown route; a 404 instead of a 405, or the reverse, is a wrong answer."""
    method, path, expected = rng.choice(bodies.UNKNOWN_ROUTES)
    status, _ = await client.ask(method, path)
    if status in {404, 405} and status != expected:
        raise WrongAnswer(f"{method} {path} is answered {status}")
    return status


async def look(client: Client, rng: random.Random) -> int:
    return (await client.ask("GET", rng.choice(bodies.PAGES)))[0]


async def reset(client: Client, rng: random.Random) -> int:
    return (await client.ask("POST", "/reset_prefix_cache"))[0]


@dataclass(frozen=True)
class Kind:
    """One kind of action.

    Attributes:
        act: performs it once and returns the status; None if the connection ended without an answer.
        weight: relative frequency.
        expected: outcomes that are no failure.
    """

    act: Callable[[Client, random.Random], Awaitable[int | None]]
    weight: float
    expected: frozenset[int | None]


def _kind(act: Callable[[Client, random.Random], Awaitable[int | None]], weight: float, *expected: int | None) -> Kind:
    return Kind(act, weight, frozenset(expected))


KINDS: dict[str, Kind] = {
    kind.act.__name__: kind
    for kind in (
        _kind(whole, 15, 200),
        _kind(stream, 20, 200),
        _kind(several, 2, 200),
        _kind(guided, 5, 200),
        _kind(leave_stream, 15, 200),
        _kind(leave_whole, 10, 200, None),
        _kind(read_slowly, 10, 200),
        _kind(send_slowly, 3, 200),
        _kind(break_off, 5, None),
        _kind(talk_nonsense, 2, 400, None),
        _kind(mistake, 8, 400),
        _kind(too_long, 2, 400),
        _kind(too_big, 0.05, 413, None),
        _kind(unknown, 2, 404, 405),
        _kind(look, 5, 200),
        _kind(reset, 0.5, 200),
    )
}
