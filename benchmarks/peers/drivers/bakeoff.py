"""Sends one load with our own client, and writes the figures that the other clients report too as JSON.

The worker process measures; this process generates the traffic before the load, sleeps during it, and decodes after it.
"""

import argparse
import asyncio
import itertools
import json
import os
from pathlib import Path

import msgspec
import numpy as np

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Closed, Open, decode_stream, local_fleet
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.client.wire.plan import wire_sessions
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.declaration import known
from bakeoff.results.records import RequestRecord
from bakeoff.results.requests import Requests
from bakeoff.workloads import Message, PlannedSession, Poisson, Random, Seed, Session, Tokenizer, Turn

_LONG_S = 600.0


def planned(options: argparse.Namespace) -> list[PlannedSession]:
    """Random words as prompts, or as the one message of a chat; with start times when a rate is asked for."""
    words = Random(input_tokens=options.input_tokens, output_tokens=options.output_tokens)
    sessions = itertools.islice(words.sessions(Tokenizer(options.tokenizer), Seed.of("peers")), options.requests)
    if options.endpoint == "chat":
        sessions = (Session(session.id, tuple(map(_as_chat, session.turns))) for session in sessions)
    offsets = Poisson(options.rate).offsets_s("peers") if options.rate else itertools.repeat(None)
    return [PlannedSession(session, offset) for session, offset in zip(sessions, offsets, strict=False)]


def _as_chat(turn: Turn) -> Turn:
    return Turn(turn.input_tokens, turn.output_tokens, messages=(Message("user", turn.prompt or ""),))


async def drive(options: argparse.Namespace, sessions: list[PlannedSession]) -> list[RequestRecord]:
    """Send the load from a worker on the core of this process, and decode the answers after it."""
    dialect = ReferenceDialect()
    folder = TrialFolder(options.folder / "trial")
    folder.create()
    share = Closed(options.concurrency, _LONG_S) if options.concurrency else Open(sessions[-1].offset_s or 0.0)
    async with local_fleet(1, cores=tuple(os.sched_getaffinity(0))[:1]) as fleet:
        order = LoadOrder(targets=(Target(options.base_url),), share=share, timeout_s=_LONG_S)
        result = await fleet.load(order, wire_sessions(sessions, dialect, "truth"), folder)
    (options.folder / "load.json").write_bytes(msgspec.json.encode(result))
    return [decode_stream(stream, dialect, None) for stream in folder.read_streams()]


def figures(requests: list[RequestRecord], sessions: list[PlannedSession]) -> dict[str, float | int | None]:
    """Fields of :class:`benchmarks.peers.protocol.Figures`; latencies count from the plan, of successful requests."""
    good = Requests(requests).ok
    ttft_ms = (known(latency.ttft_s(good)) * 1e3).tolist()
    tpot_ms = (known(latency.tpot_s(good)) * 1e3).tolist()
    gap_ms = (latency.chunk_gaps_s(good)[0] * 1e3).tolist()
    last_s = sessions[-1].offset_s
    return {
        "ttft_mean_ms": _mean(ttft_ms),
        "ttft_p50_ms": float(np.quantile(ttft_ms, 0.50)) if ttft_ms else None,
        "ttft_p99_ms": float(np.quantile(ttft_ms, 0.99)) if ttft_ms else None,
        "itl_mean_ms": _mean(gap_ms),
        "itl_p99_ms": float(np.quantile(gap_ms, 0.99)) if gap_ms else None,
        "tpot_mean_ms": _mean(tpot_ms),
        "ok": len(good),
        "failed": len(requests) - len(good),
        "duration_s": (max(r.ended_ns for r in requests) - min(r.planned_ns for r in requests)) / 1e9,
        "output_tokens": sum(request.total_chunk_tokens for request in good),
        "planned_rate_per_s": (len(sessions) - 1) / (last_s - (sessions[0].offset_s or 0)) if last_s else None,
    }


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--tokenizer", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--endpoint", choices=["completions", "chat"], required=True)
    for name in ("requests", "input-tokens", "output-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    shape = parser.add_mutually_exclusive_group(required=True)
    shape.add_argument("--concurrency", type=int)
    shape.add_argument("--rate", type=float)
    options = parser.parse_args()
    sessions = planned(options)
    requests = asyncio.run(drive(options, sessions))
    (options.folder / "result.json").write_text(json.dumps(figures(requests, sessions)))


if __name__ == "__main__":
    main()
