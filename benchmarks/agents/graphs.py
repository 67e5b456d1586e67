"""Random session graphs over sockets: order, joins and gaps against a simulation that shares no code with the product.

    python -m benchmarks.agents.graphs [--sessions 200] [--seed 1]

The server of this script answers each request after the time that its prompt states, one in ten with HTTP 500, and
notes when requests arrive and when answers end. The expected arrival of a call follows from the ends of the calls that
it waits for, its pause, and the tenth of a second that follows a failure.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.agents.loopback import LoopbackServer
from benchmarks.bars import Bars

FAILURE_PAUSE_S = 0.1
FAILED = 0.1
SPAN_S = 30.0
Call = tuple[str, int]
"""Session and position of a call."""
WARM_UP = {("s0", 0), ("s1", 0), ("s2", 0)}
"""Calls that the warm-up sends before the load."""


class TimedServer(LoopbackServer):
    """Answers after the seconds that a prompt states; notes arrivals and ends, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.arrived_s: dict[Call, float] = {}
        self.ended_s: dict[Call, float] = {}
        self.lengths: dict[Call, int] = {}
        self.duplicates = 0
        super().__init__({"/v1/completions": self._complete})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        now_s = time.monotonic()
        body = await request.json()
        words = body["prompt"].split()
        if words[0] != "call":  # a request before the load
            return await self._answer(request, 1)
        call = words[1], int(words[2])
        self.duplicates += call in self.arrived_s and call not in WARM_UP
        self.arrived_s[call], self.lengths[call] = now_s, body["max_tokens"]
        await asyncio.sleep(max(0.0, now_s + float(words[3]) - time.monotonic()))
        if words[4] == "fails":
            self.ended_s[call] = time.monotonic()
            return web.json_response({"error": {"message": "planned"}}, status=500)
        response = await self._answer(request, body["max_tokens"])
        self.ended_s[call] = time.monotonic()
        return response

    @staticmethod
    async def _answer(request: web.Request, tokens: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        usage = {"prompt_tokens": 6, "completion_tokens": tokens, "total_tokens": 6 + tokens}
        for choice, counted in (({"text": " a" * tokens}, None), ({"text": "", "finish_reason": "length"}, usage)):
            event = {"id": "c", "choices": [{"index": 0, **choice}], "usage": counted}
            await response.write(b"data: %b\n\n" % json.dumps(event).encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def random_session(name: str, start_s: float, rng: random.Random) -> dict[str, Any]:
    """A session file's line: up to twelve calls that wait for up to three earlier ones."""
    turns: list[dict[str, Any]] = []
    for number in range(rng.randint(1, 12)):
        parents = sorted(rng.sample(range(number), min(number, rng.randint(0, 3))))
        outcome = "fails" if rng.random() < FAILED else "answers"
        turns.append(
            {
                "input_tokens": 6,
                "output_tokens": rng.randint(1, 20),
                "prompt": f"call {name} {number} {rng.uniform(0.05, 1.0):.6f} {outcome}",
                "think_s": rng.uniform(0.01, 1.0) if number else 0.0,
                "parents": parents,
                "lags_s": [rng.choice([0.0, rng.uniform(0, 0.5)]) for _ in parents],
                "agent": rng.choice(["", "helper"]),
            }
        )
    return {"id": name, "turns": turns, "start_s": start_s}


def gap_errors_s(session: dict[str, Any], server: TimedServer) -> list[float]:
    """Actual minus expected arrival of each call that waits for others."""
    errors: list[float] = []
    for number, turn in enumerate(session["turns"]):
        call = session["id"], number
        if not turn["parents"] or call not in server.arrived_s:
            continue
        ends_s = {parent: server.ended_s[session["id"], parent] for parent in turn["parents"]}
        ready_s = max(end_s + lag_s for end_s, lag_s in zip(ends_s.values(), turn["lags_s"], strict=True))
        last = max(ends_s, key=lambda parent: ends_s[parent])
        failed = session["turns"][last]["prompt"].endswith("fails")
        due_s = max(ready_s + turn["think_s"], ends_s[last] + FAILURE_PAUSE_S * failed)
        errors.append(server.arrived_s[call] - due_s)
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, server = random.Random(options.seed), TimedServer()
    starts_s = sorted(rng.uniform(0, SPAN_S) for _ in range(options.sessions))
    sessions = [random_session(f"s{number}", start_s, rng) for number, start_s in enumerate(starts_s)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sessions.jsonl").write_text("\n".join(map(json.dumps, sessions)), encoding="utf-8")
        (folder / "graphs.toml").write_text(
            f"""
name = "graphs"
repeats = 1
[model]
name = "timed"
tokenizer = "approximate"
[[engines]]
adapter = "openai"
url = "{server.url}"
[workload]
name = "sessions"
options = {{ path = "{folder}/sessions.jsonl" }}
[[loads]]
arrival = "workload"
[trial]
duration_s = {SPAN_S + 60}
timeout_s = 60
""",
            encoding="utf-8",
        )
        run = [sys.executable, "-m", "bakeoff", "run", str(folder / "graphs.toml"), "--out", str(folder / "runs")]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
    planned = {(session["id"], number) for session in sessions for number in range(len(session["turns"]))}
    if not server.arrived_s:
        sys.exit(done.stdout + done.stderr)
    errors_ms = sorted(1000 * error_s for session in sessions for error_s in gap_errors_s(session, server))
    starts = {session["id"]: session["start_s"] for session in sessions}
    begun_s = [server.arrived_s[name, 0] - start_s for name, start_s in starts.items()]
    print(f"{len(sessions)} sessions, {len(planned)} calls, {len(errors_ms)} gaps; one in ten answers is HTTP 500")
    print(
        f"gap error: p50 {statistics.median(errors_ms):.2f} ms, p99 {errors_ms[int(0.99 * len(errors_ms))]:.2f} ms, "
        f"least {errors_ms[0]:.2f} ms, most {errors_ms[-1]:.2f} ms"
    )
    lengths = {(s["id"], number): turn["output_tokens"] for s in sessions for number, turn in enumerate(s["turns"])}
    bars = Bars()
    bars.add("calls_lost", len(planned - server.arrived_s.keys()), "==", 0)
    bars.add("calls_sent_twice", server.duplicates, "==", 0)
    bars.add("lengths_wrong", sum(server.lengths.get(call) != tokens for call, tokens in lengths.items()), "==", 0)
    bars.add("gap_error_p99_ms", errors_ms[int(0.99 * len(errors_ms))], "<=", 5.0)
    bars.add("calls_before_a_join_ended", sum(error_ms < -1.0 for error_ms in errors_ms), "==", 0)
    bars.add("session_start_spread_ms", 1000 * (max(begun_s) - min(begun_s)), "<=", 20.0)
    bars.finish()


if __name__ == "__main__":
    main()
