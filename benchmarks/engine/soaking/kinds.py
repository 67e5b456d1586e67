"""What the users of the soak do, good and bad; each act says with which status it was answered."""

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from benchmarks.engine.soaking import bodies
from benchmarks.engine.soaking.client import CHAT, TEXT, Client, WrongAnswer, check_stream, check_whole, status_of

BIG_MEBIBYTES = 65  # more than the 64 that a body may have
READ_BYTES = 256


async def whole(client: Client, rng: random.Random) -> int:
    path, body = bodies.generation(rng)
    status, answer = await client.ask("POST", path, body)
    if status == 200:
        check_whole(answer, bodies.answers(body))
    return status


async def stream(client: Client, rng: random.Random) -> int:
    path, body = bodies.generation(rng)
    status, answer = await client.ask("POST", path, body | {"stream": True})
    if status == 200:
        check_stream(answer, bodies.answers(body))
    return status


async def several(client: Client, rng: random.Random) -> int:
    """Prompts, answers to each and candidates for those."""
    asked = {"prompt": [bodies.prompt(rng), bodies.words(rng, 40)], "n": 2, "best_of": 3, "max_tokens": 12}
    status, answer = await client.ask("POST", TEXT, asked)
    if status == 200:
        check_whole(answer, 4)
    return status


async def guided(client: Client, rng: random.Random) -> int:
    """A pattern, a choice, or a schema that nobody asked for before."""
    name = f"field_{rng.getrandbits(32):08x}"
    schema = {"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]}
    wish, pattern = rng.choice(
        [
            ({"guided_regex": "[0-9]{3}-[a-z]{2}"}, "[0-9]{3}-[a-z]{2}"),
            ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
            ({"guided_json": schema | {"additionalProperties": False}}, rf'\{{\s*"{name}"\s*:\s*(true|false)\s*\}}'),
        ]
    )
    asked = {"messages": bodies.HELLO, "max_tokens": 64, "temperature": rng.choice([0, 1])}
    status, answer = await client.ask("POST", CHAT, asked | wish)
    if status == 200:
        (choice,) = check_whole(answer, 1)
        if choice["finish_reason"] == "stop" and not re.fullmatch(pattern, choice["message"]["content"]):
            raise WrongAnswer(f"{wish} gave {choice['message']['content']!r}")
    return status


async def leave_stream(client: Client, rng: random.Random) -> int:
    """Reads for a while, then goes."""
    path, body = bodies.generation(rng, max_tokens=150)
    async with client.open(path, body | {"stream": True}) as answer:
        try:
            async with asyncio.timeout(rng.expovariate(1.0)):
                await answer.read()
        except TimeoutError:
            pass
        return answer.status


async def leave_whole(client: Client, rng: random.Random) -> int | None:
    """Goes before there is an answer, mostly."""
    path, body = bodies.generation(rng, max_tokens=150)
    try:
        async with asyncio.timeout(rng.expovariate(2.0)):
            return (await client.ask("POST", path, body))[0]
    except TimeoutError:
        return None


async def read_slowly(client: Client, rng: random.Random) -> int | None:
    """A stream that is read some bytes at a time; then at once to its end, or not at all."""
    path, body = bodies.generation(rng, max_tokens=100)
    sent = json.dumps(body | {"stream": True, "ignore_eos": True}).encode()
    async with client.wire() as (reader, writer):
        writer.write(client.head(path, len(sent)) + sent)
        status = await status_of(reader)
        for _ in range(rng.randint(1, 40)):
            if not await reader.read(READ_BYTES):
                return status
            await asyncio.sleep(rng.uniform(0.01, 0.2))
        while rng.random() < 0.99 and await reader.read(READ_BYTES):
            pass
        return status


async def send_slowly(client: Client, rng: random.Random) -> int | None:
    """A body that comes in pieces."""
    path, body = bodies.generation(rng, max_tokens=4)
    sent = json.dumps(body).encode()
    async with client.wire() as (reader, writer):
        writer.write(client.head(path, len(sent)))
        for first in range(0, len(sent), 100):
            await asyncio.sleep(rng.uniform(0, 0.1))
            writer.write(sent[first : first + 100])
        return await status_of(reader)


async def break_off(client: Client, rng: random.Random) -> None:
    """Half a head or half a body, then a reset."""
    head = client.head(TEXT, 1000)
    sent = head[: rng.randint(1, len(head))] if rng.random() < 0.3 else head + b'{"prompt": "' + b"x" * 500
    async with client.wire() as (_, writer):
        writer.write(sent)
        await asyncio.sleep(rng.uniform(0, 0.3))


async def talk_nonsense(client: Client, rng: random.Random) -> int | None:
    """Bytes that are no HTTP."""
    async with client.wire() as (reader, writer):
        writer.write(b"\x16\x03" + rng.randbytes(40) + b"\r\n\r\n")
        return await status_of(reader)


async def mistake(client: Client, rng: random.Random) -> int:
    path, body = bodies.mistake(rng)
    return (await client.ask("POST", path, body))[0]


async def too_long(client: Client, rng: random.Random) -> int:
    path, body = bodies.too_long(rng)
    return (await client.ask("POST", path, body))[0]


async def too_big(client: Client, rng: random.Random) -> int | None:  # noqa: ARG001
    """The server may answer, or hang up while there is still more to come."""

    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(BIG_MEBIBYTES):
            yield b" " * (1 << 20)

    try:
        return (await client.ask("POST", TEXT, pieces()))[0]
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
        return None


async def unknown(client: Client, rng: random.Random) -> int:
    """A 404 or a 405; any other status is told apart by being none of the two that are expected."""
    method, path, expected = rng.choice(bodies.UNKNOWN)
    status, _ = await client.ask(method, path)
    if status in {404, 405} and status != expected:
        raise WrongAnswer(f"{method} {path} is answered {status}")
    return status


async def look(client: Client, rng: random.Random) -> int:
    return (await client.ask("GET", rng.choice(bodies.PAGES)))[0]


async def reset(client: Client, rng: random.Random) -> int:  # noqa: ARG001
    return (await client.ask("POST", "/reset_prefix_cache"))[0]


@dataclass(frozen=True)
class Kind:
    """One kind of behaviour.

    Attributes:
        act: does it once; None where it left, or was left, without an answer.
        weight: how often it is chosen, beside the others.
        expected: every outcome that is in order.
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
