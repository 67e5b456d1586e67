"""Hostile requests hurt nobody: no 5xx, memory comes back, and other streams go on.

    python -m tests.acceptance.engine.hostile [--requests 200]

A server of SmolLM2 answers a few ordinary streams. Beside them it gets requests that are far too long, nested,
compressed wrongly, of wrong types and ranges, with grammars and tools that are too large, half sent, or given up. No
answer may have a status of 500 or above, the front end's memory must be back within 10 % ten seconds later, and the
streams' 99th percentile of gaps between tokens must stay within twice that of quiet times. The last line of the output
is one JSON object; the exit status is 0 if every goal is met.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import multiprocessing
import random
import tempfile
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from bakeoff.engines import EngineSpec
from benchmarks.bars import Bars, model_argument
from benchmarks.serving import reference_server
from tests.acceptance.engine.soaking.client import CHAT, TEXT, Client

SPEC = EngineSpec(max_model_len=512, max_num_seqs=16)
STREAMS, QUIET_S, REST_S = 3, 20.0, 10.0
HELLO = [{"role": "user", "content": "hello"}]
_SMALL = {"max_tokens": 1}
Request = tuple[str, bytes, dict[str, str]]


def _body(path: str, **fields: Any) -> Request:
    return path, json.dumps(fields | _SMALL).encode(), {}


def _schema(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"key_{i}": {"type": "string"} for i in range(count)}}


def _chain(length: int) -> dict[str, Any]:
    defs = {str(i): {"type": "array", "items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(length)}
    return {"$ref": "#/$defs/0", "$defs": defs | {str(length): {"type": "null"}}}


def _nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _tools(count: int, schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(count)]


_ODD: tuple[Any, ...] = (None, True, -1, 2**70, 1e308, 0.5, "", "\ud800", [], [[]], {}, {"a": {"b": []}}, [None] * 9)
_FIELDS = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "stop", "logprobs", "logit_bias",
    "stream_options", "tools", "tool_choice", "response_format", "guided_json", "guided_regex", "structured_outputs",
    "echo", "priority", "cache_salt", "stop_token_ids", "chat_template_kwargs", "reasoning_effort", "prompt_logprobs",
)  # fmt: skip
KINDS: tuple[Callable[[random.Random], Request], ...] = (
    lambda rng: _body(TEXT, prompt="word " * rng.randrange(10**5, 10**6)),
    lambda rng: _body(TEXT, prompt="🙂" * rng.randrange(10**5, 5 * 10**6)),
    lambda rng: _body(TEXT, prompt=[rng.choice((5, -1, 2**70))] * rng.randrange(1, 10**5)),
    lambda rng: _body(TEXT, prompt=["x"] * rng.randrange(200, 300)),
    lambda rng: _body(CHAT, messages=HELLO * rng.randrange(1000, 30_000)),
    lambda rng: _body(CHAT, messages=[{"role": "user", "content": rng.choice(_ODD)}]),
    lambda rng: (rng.choice((TEXT, CHAT)), b"[" * rng.randrange(10**6), {}),
    lambda rng: (CHAT, b'{"messages": "\xff\xfe"}', {}),
    lambda rng: (CHAT, rng.randbytes(rng.randrange(1000)), {}),
    lambda rng: (TEXT, gzip.compress(b" " * rng.randrange(10**6, 2 * 10**8), 1), {"Content-Encoding": "gzip"}),
    lambda rng: (TEXT, b"{}", {"Content-Encoding": rng.choice(("gzip", "deflate", "br", "zstd", "x"))}),
    lambda rng: _body(TEXT, prompt="x", **{rng.choice(_FIELDS): rng.choice(_ODD) for _ in range(3)}),
    lambda rng: _body(CHAT, messages=HELLO, **{rng.choice(_FIELDS): rng.choice(_ODD) for _ in range(3)}),
    lambda rng: _body(TEXT, prompt="x", guided_json=_schema(rng.randrange(300, 3000))),
    lambda rng: _body(TEXT, prompt="x", guided_json=_chain(rng.randrange(100, 5000))),
    lambda rng: _body(TEXT, prompt="x", guided_regex="(a|aa)+" * rng.randrange(1, 300) + "b"),
    lambda rng: _body(TEXT, prompt="x", structured_outputs={"choice": ["y" * rng.randrange(1, 2000)] * 999}),
    lambda rng: _body(CHAT, messages=HELLO, tools=_tools(rng.randrange(1, 500), _schema(20)), tool_choice="required"),
    lambda rng: _body(CHAT, messages=HELLO, tools=_tools(2, _chain(rng.randrange(300, 3000))), tool_choice="required"),
    lambda rng: _body(CHAT, messages=HELLO, tools=_tools(2, _nest(rng.randrange(300, 900))), tool_choice="required"),
    lambda rng: _body(TEXT, prompt="x", logit_bias={str(i): 1 for i in range(rng.randrange(10**4, 4 * 10**4))}),
    lambda rng: _body(TEXT, prompt="x", stop=["s" * 10**4] * rng.randrange(1, 40)),
    lambda rng: ("/v1/" + "a" * rng.randrange(10**4), b"", {}),
)  # fmt: skip


class Streams:
    """Ordinary streams, one after the other on each of a few connections; `gaps` in seconds between their events."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self.gaps: list[float] = []
        self.failed = 0

    async def run(self) -> None:
        """Streams until cancelled."""
        body = {"prompt": "Tell me a long story.", "max_tokens": 200, "stream": True, "ignore_eos": True}
        while True:
            async with self._session.post(self._url + TEXT, json=body) as answer:
                self.failed += answer.status != 200
                last: float | None = None
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        now = time.perf_counter()
                        if last is not None:
                            self.gaps.append(now - last)
                        last = now


async def _send(client: Client, session: aiohttp.ClientSession, request: Request, rng: random.Random) -> str:
    """One hostile request; returns its status, or what happened instead."""
    path, body, headers = request
    if rng.random() < 0.15:  # half of it, then a reset
        with contextlib.suppress(OSError):
            async with client.connection() as (_, writer):
                writer.write(client.head(path, len(body) + 1) + body[: min(len(body) // 2, 10**6)])
                await asyncio.sleep(0.05)
        return "half sent"
    try:
        headers = {"Content-Type": "application/json"} | headers
        async with session.post(client.url + path, data=body, headers=headers) as answer:
            if rng.random() < 0.1:
                return "given up"
            await answer.read()
            return str(answer.status)
    except (aiohttp.ClientError, OSError) as error:
        return type(error).__name__


def _attacker(host: str, port: int, requests: list[Request], width: int, results: Connection) -> None:
    """Sends all requests, `width` at a time, from a process of its own: the streams' gaps are not to wait for it."""

    async def attack() -> Counter[str]:
        rng, statuses = random.Random(0), Counter[str]()
        async with aiohttp.ClientSession() as session:
            client = Client(session, host, port)
            for first in range(0, len(requests), width):
                sent = (_send(client, session, request, rng) for request in requests[first : first + width])
                statuses.update(await asyncio.gather(*sent))
        return statuses

    results.send(asyncio.run(attack()))


async def attack(
    model: str, count: int, seed: int, width: int
) -> tuple[Counter[str], list[float], list[float], list[int], int]:
    """Statuses, gaps in quiet times and under attack, resident bytes before and after, and failed streams."""
    rng = random.Random(seed)
    requests = [rng.choice(KINDS)(rng) for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        async with reference_server(model, Path(folder) / "log", SPEC) as server, aiohttp.ClientSession() as session:
            address = urllib.parse.urlsplit(server.base_url)
            assert address.hostname is not None
            assert address.port is not None
            process = psutil.Process(server.pid)

            def memory() -> int:  # of the front end; blocks of the cache become resident in the engine's process
                return process.memory_info().rss

            streams = Streams(session, server.base_url)
            tasks = [asyncio.create_task(streams.run()) for _ in range(STREAMS)]
            await asyncio.sleep(3)
            streams.gaps.clear()
            await asyncio.sleep(QUIET_S)
            quiet, before = list(streams.gaps), memory()
            streams.gaps.clear()
            context = multiprocessing.get_context("fork")
            receiver, sender = context.Pipe(duplex=False)
            arguments = address.hostname, address.port, requests, width, sender
            attacker = context.Process(target=_attacker, args=arguments)
            attacker.start()
            statuses = await asyncio.to_thread(receiver.recv)
            attacker.join()
            attacked = list(streams.gaps)
            await asyncio.sleep(REST_S)
            after = memory()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return statuses, quiet, attacked, [before, after], streams.failed


def main() -> None:
    """Attacks and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=1, help="hostile requests; more take CPU time from the engine")
    parser.add_argument("--seed", type=int, default=50)
    options = parser.parse_args()
    statuses, quiet, attacked, memory, failed = asyncio.run(
        attack(options.model, options.requests, options.seed, options.at_once)
    )
    print(", ".join(f"{status}: {count}" for status, count in statuses.most_common()))
    gaps = [float(np.percentile(each, 99)) for each in (quiet, attacked)]
    print(f"p99 of gaps {gaps[0] * 1e3:.0f} ms in quiet times, {gaps[1] * 1e3:.0f} ms under attack")
    print(f"resident {memory[0] / 2**20:.0f} MiB before, {memory[1] / 2**20:.0f} MiB {REST_S:g} s after")
    bars = Bars()
    bars.add("server_errors", sum(count for status, count in statuses.items() if status.startswith("5")), "<=", 0)
    bars.add("failed_streams", failed, "<=", 0)
    bars.add("p99_gap_over_quiet", gaps[1] / gaps[0], "<=", 2)
    bars.add("memory_over_before", memory[1] / memory[0], "<=", 1.1)
    bars.finish()


if __name__ == "__main__":
    main()
