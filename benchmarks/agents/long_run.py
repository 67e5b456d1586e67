"""Figures of sessions from windows shorter than a session, against a simulation that shares no code with the product.

    python -m benchmarks.agents.long_run [--seeds 12]

Each seed draws sessions of its own and measures them in virtual time on an engine whose answer times are known. The
expected figures are means over the drawn sessions, each timed alone by :func:`timed`. They last at least 1.5 times as
long as the window. Bars bound the mean error over the seeds, the bias; the table has the spread of single windows, too.
Conversations are chains of calls, trees have sub-agents, and in lagged trees a call has a lag of up to three seconds
for each call that it waits for.
"""

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_experiment, virtual_run
from benchmarks.bars import Bars

FIRST_S, TOKEN_S = 0.4, 0.01
"""Time of an answer's first token, and of each one after it."""
WINDOW_S = 30.0
SESSIONS = 400
"""As many as the harness reads to learn what sessions are like."""
MAX_BIAS = 0.03
LOADS: dict[str, dict[str, Any]] = {
    "closed": {"concurrency": 50},
    "open": {"rate_per_s": 0.6, "arrival": "poisson"},
}


def call(rng: random.Random, parents: list[int], agent: str = "", lag_s: float = 0.0) -> dict[str, Any]:
    pause_s = rng.uniform(0.5, 8.0) if parents else 0.0
    tokens = rng.randint(10, 200)
    return {
        "input_tokens": 4, "output_tokens": tokens, "prompt": "one two three four", "think_s": pause_s,
        "parents": parents, "agent": agent, "lags_s": [rng.uniform(0.0, lag_s) for _ in parents] if lag_s else [],
    }  # fmt: skip


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    """Nine to sixteen calls, one after the other."""
    calls = [call(rng, [number - 1] if number else []) for number in range(rng.randint(9, 16))]
    for one in calls:
        del one["parents"]
    return calls


def tree(rng: random.Random, lag_s: float = 0.0) -> list[dict[str, Any]]:
    """A main agent whose calls spawn up to three sub-agents that it waits for, or one that it does not."""
    calls, waits_for = [call(rng, [])], [0]
    for step in range(rng.randint(5, 9)):
        main = len(calls)
        calls.append(call(rng, waits_for, lag_s=lag_s))
        waits_for = [main]
        is_background = rng.random() < 0.2
        for child in range(rng.choice([0, 0, 1, 2, 3])):
            last = main
            for _ in range(rng.randint(1, 4)):
                calls.append(call(rng, [last], f"{step}.{child}"))
                last = len(calls) - 1
            if not is_background:
                waits_for.append(last)
    return calls


KINDS: dict[str, Callable[[random.Random], list[dict[str, Any]]]] = {
    "conversations": conversation,
    "trees": tree,
    "lagged-trees": lambda rng: tree(rng, 3.0),
}


def timed(calls: list[dict[str, Any]], first_s: float, token_s: float) -> float:
    """Seconds of a session on an engine that serves every request at once."""
    ends_s: list[float] = []
    for number, one in enumerate(calls):
        parents = one.get("parents", [number - 1] if number else [])
        lags_s = one["lags_s"] or [0.0] * len(parents)
        ready_s = max((ends_s[parent] + lag_s for parent, lag_s in zip(parents, lags_s, strict=True)), default=0.0)
        ends_s.append(ready_s + one["think_s"] + first_s + token_s * (one["output_tokens"] - 1))
    return max(ends_s)


def expected(sessions: list[list[dict[str, Any]]], load: dict[str, Any]) -> dict[str, float]:
    session_s = statistics.fmean(timed(calls, FIRST_S, TOKEN_S) for calls in sessions)
    tool_s = statistics.fmean(timed(calls, 0.0, 0.0) for calls in sessions)
    tokens = statistics.fmean(sum(one["output_tokens"] for one in calls) for calls in sessions)
    rate_per_s = load.get("rate_per_s", load.get("concurrency", 0) / session_s)
    return {
        "session_s": session_s, "session_tool_s": tool_s, "session_server_s": session_s - tool_s,
        "session_stretch": session_s / tool_s, "sessions_per_hour": 3600 * rate_per_s,
        "tokens_per_s_per_session": tokens / session_s,
    }  # fmt: skip


def errors(kind: str, load: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Measured over expected, less 1, by metric; a metric that is absent has none."""
    rng = random.Random(f"{kind}/{seed}")
    sessions = [KINDS[kind](rng) for _ in range(SESSIONS)]
    path = folder / f"{kind}-{seed}.jsonl"
    lines = [json.dumps({"id": f"s{number}", "turns": calls}) for number, calls in enumerate(sessions)]
    path.write_text("\n".join(lines), encoding="utf-8")
    experiment = virtual_experiment(
        ["e"], [load], repeats=1, seed=seed,
        workload={"name": "sessions", "options": {"path": str(path)}},
        trial={"warm_up_s": 0.0, "duration_s": WINDOW_S, "min_requests": 1, "ramp_s": 10.0},
    )  # fmt: skip
    engine = VirtualEngine(service=PerToken(Fixed(FIRST_S), Fixed(TOKEN_S)))
    run = virtual_run(experiment, {"e": engine}, folder / f"{kind}-{seed}-{'-'.join(load)}")
    (trial,) = run.finished
    wanted = expected(sessions, load)
    assert wanted["session_s"] > 1.5 * trial.window.length_s, (wanted["session_s"], trial.window.length_s)
    measured = {name: trial.metrics[name].value for name in wanted}
    return {name: value / wanted[name] - 1 for name, value in measured.items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    options = parser.parse_args()
    bars = Bars()
    for kind in KINDS:
        for shape, load in LOADS.items():
            with tempfile.TemporaryDirectory() as name:
                found = [errors(kind, load, seed, Path(name)) for seed in range(1, options.seeds + 1)]
            print(f"{kind}, {shape} loop")
            for metric in dict.fromkeys(name for one in found for name in one):
                values = [one[metric] for one in found if metric in one]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                bias, error = statistics.fmean(values), spread / math.sqrt(len(values))
                print(f"  {metric:26} {bias:+7.2%} ± {error:.2%}, one window ± {spread:.2%}, {len(values)} windows")
                bars.add(f"{kind.replace('-', '_')}_{shape}_{metric}", abs(bias), "<=", MAX_BIAS)
    bars.finish()


if __name__ == "__main__":
    main()
