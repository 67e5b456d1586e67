"""How much the prefix cache shortens TTFT where prompts share 1,000 tokens.

Two servers run side by side, one with `--enable-prefix-caching` and one without. They get the same requests in turn,
one at a time, so that one is idle while the other answers. A request is 1,000 shared tokens and some of its own, sent
as token ids. The client measures TTFT from sending the request to the first event that holds a token. The first
requests warm up both sides and fill the cache.

Published gains: RadixAttention has up to 6.4 times the throughput and 3.7 times lower latency on programs that share
prefixes (SGLang, arXiv:2312.07104). vLLM's documentation of automatic prefix caching gives no figure: it states only
that shared prefixes are not recomputed and that decoding becomes no faster.
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

from bakeoff.engines import EngineSpec, Server
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.prompts import text
from benchmarks.serving import reference_server

GOAL, LEAST_REQUESTS, BLOCK = 0.80, 20, 16


class Client:
    """Sends one request at a time to one server over one connection.

    Args:
        server: that answers.
        session: holds the connection.
        tokens: of output for each request.
    """

    def __init__(self, server: Server, session: aiohttp.ClientSession, tokens: int) -> None:
        self._url = server.base_url + "/v1/completions"
        self._session = session
        self._tokens = tokens
        self.cached: list[int] = []  # tokens of each prompt, as the server reports

    async def ttft_s(self, prompt: list[int]) -> float:
        """Seconds from sending to the first event that holds a token; the whole stream is read."""
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
    """Token ids: the start of this project's documentation, then random ones for each prompt."""
    tokenizer = open_checkpoint(Path(model)).tokenizer
    prefix, rng = tokenizer.encode(text())[:shared], random.Random(shared)
    assert len(prefix) == shared
    return [prefix + [rng.randrange(100, 40_000) for _ in range(own)] for _ in range(count)]


async def measure(options: argparse.Namespace, folder: Path) -> tuple[list[float], list[float], list[int], list[int]]:
    """TTFT in seconds of each request, with and without the cache; then the cached tokens that each side reported."""
    requests = prompts(options.model, options.shared, options.own, options.warmup + options.requests)
    cached_spec, plain_spec = (
        EngineSpec(dtype="bfloat16", max_model_len=2048, enable_prefix_caching=is_cached) for is_cached in (True, False)
    )
    async with (
        reference_server(options.model, folder / "with.log", cached_spec) as cached,
        reference_server(options.model, folder / "without.log", plain_spec) as plain,
        aiohttp.ClientSession() as session,
    ):
        sides = [Client(server, session, options.tokens) for server in (cached, plain)]
        ttfts_s: dict[Client, list[float]] = {side: [] for side in sides}
        for number, prompt in enumerate(requests):
            for side in sides if number % 2 else sides[::-1]:
                ttfts_s[side].append(await side.ttft_s(prompt))
    kept = slice(options.warmup, None)
    return ttfts_s[sides[0]][kept], ttfts_s[sides[1]][kept], sides[0].cached[kept], sides[1].cached[kept]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--shared", type=int, default=1000, help="tokens that all prompts begin with")
    parser.add_argument("--own", type=int, default=32, help="tokens of each prompt after them")
    parser.add_argument("--tokens", type=int, default=4, help="of output")
    parser.add_argument("--requests", type=int, default=30, help="to each side, measured")
    parser.add_argument("--warmup", type=int, default=4, help="to each side before them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        on, off, cached_on, cached_off = asyncio.run(measure(options, Path(folder)))
    print(f"{options.shared} shared tokens and {options.own} of each prompt's own")
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
