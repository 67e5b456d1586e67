"""Bar 3, its first part: what the prefix cache takes off the time to the first token of a 1,000-token shared prompt.

Two servers stand side by side, one with `--enable-prefix-caching` and one without; they get the same requests in turn,
one at a time, so that one is idle while the other answers. A request is 1,000 tokens that all share and some of its
own, sent as token ids; TTFT runs at the client from sending to the first event that holds a token. The first requests
warm both sides and fill the cache.

What others say: up to 6.4 times the throughput and 3.7 times lower latency for RadixAttention on programs that share
prefixes (SGLang, arXiv:2312.07104); vLLM's documents of automatic prefix caching state no figure, only that what is
shared is not computed again, and that decoding becomes no faster.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.bars import Bars, model_argument
from benchmarks.engine.kv_memory import text
from benchmarks.serving import reference_server
from engines import EngineSpec, Server
from reference_engine.loading.checkpoint import open_checkpoint

GOAL, LEAST_REQUESTS, BLOCK = 0.80, 20, 16


class Client:
    """Sends one request at a time to one server over one connection.

    Args:
        server: to whom.
        session: whose connection it keeps.
        tokens: to be answered.
    """

    def __init__(self, server: Server, session: aiohttp.ClientSession, tokens: int) -> None:
        self._url = server.base_url + "/v1/completions"
        self._session = session
        self._tokens = tokens
        self.cached: list[int] = []  # of each prompt, as the server tells

    async def ttft_s(self, prompt: list[int]) -> float:
        """Seconds from sending to the first event that holds a token; the rest is read too."""
        body = {
            "prompt": prompt, "max_tokens": self._tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        began, first = time.perf_counter(), None
        async with self._session.post(self._url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            events: list[bytes] = []
            async for line in answer.content:
                if line.startswith(b"data: "):
                    first = first or time.perf_counter()
                    events.append(line[6:])
        assert first
        usage = json.loads(events[-2])["usage"]  # before [DONE]
        self.cached.append(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0))
        return first - began


def prompts(model: str, shared: int, own: int, count: int) -> list[list[int]]:
    """Token ids: the beginning of this project's documentation, then words that no other request has."""
    tokenizer = open_checkpoint(Path(model)).tokenizer
    beginning, rng = tokenizer.encode(text())[:shared], random.Random(shared)
    assert len(beginning) == shared
    return [beginning + [rng.randrange(100, 40_000) for _ in range(own)] for _ in range(count)]


async def measured(options: argparse.Namespace, folder: Path) -> tuple[list[float], list[float], list[int], list[int]]:
    """TTFT in seconds with and without the cache, request by request; then the tokens that each side had cached."""
    asked = prompts(options.model, options.shared, options.own, options.warmup + options.requests)
    with_cache, without = (
        EngineSpec(dtype="bfloat16", max_model_len=2048, enable_prefix_caching=wanted) for wanted in (True, False)
    )
    async with (
        reference_server(options.model, folder / "with.log", with_cache) as one,
        reference_server(options.model, folder / "without.log", without) as other,
        aiohttp.ClientSession() as session,
    ):
        sides = [Client(server, session, options.tokens) for server in (one, other)]
        found: dict[Client, list[float]] = {side: [] for side in sides}
        for number, prompt in enumerate(asked):
            for side in sides if number % 2 else sides[::-1]:
                found[side].append(await side.ttft_s(prompt))
    kept = slice(options.warmup, None)
    return found[sides[0]][kept], found[sides[1]][kept], sides[0].cached[kept], sides[1].cached[kept]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--shared", type=int, default=1000, help="tokens that all prompts begin with")
    parser.add_argument("--own", type=int, default=32, help="tokens of each prompt behind them")
    parser.add_argument("--tokens", type=int, default=4, help="of output")
    parser.add_argument("--requests", type=int, default=30, help="to each side, measured")
    parser.add_argument("--warmup", type=int, default=4, help="to each side before them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        on, off, cached_on, cached_off = asyncio.run(measured(options, Path(folder)))
    print(f"{options.shared} shared tokens and {options.own} own ones")
    print(f"{'TTFT in ms':<18}{'median':>9}{'lowest':>9}{'highest':>9}{'cached':>9}")
    for name, times, cached in (("prefix cache", on, cached_on), ("without", off, cached_off)):
        ms = [1e3 * t for t in times]
        print(f"{name:<18}{statistics.median(ms):>9.1f}{min(ms):>9.1f}{max(ms):>9.1f}{statistics.median(cached):>9.0f}")
    bars = Bars()
    bars.add("ttft_cut", 1 - statistics.median(on) / statistics.median(off), ">=", GOAL)
    bars.add("requests_a_side", len(on), ">=", LEAST_REQUESTS)
    bars.add("fewest_tokens_cached", min(cached_on), ">=", options.shared // BLOCK * BLOCK)
    bars.add("tokens_cached_without", max(cached_off), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
