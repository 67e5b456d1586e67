"""The number of agents that ``bakeoff search`` finds at an SLO on servers whose capacity is known, in virtual time.

    python -m benchmarks.agents.capacity [--searches 100] [--only TEXT] [--processes N]

The agents are sessions that are graphs: a main agent, groups of parallel sub-agents, and joins. The server gives every
running answer one token a step, and a step takes longer the more answers it holds. The capacity is the number of agents
at which a tenth of the calls exceed the bound. It comes from simulations of :data:`LONG_S` seconds, after
:data:`SETTLED_S`, that share no code with the product. Each search has the default budget of 20 trials.
"""

import argparse
import heapq
import json
import math
import random
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.conduct.policies.search_config import search_config
from bakeoff.harness.virtual import Batched, VirtualEngine
from bakeoff.harness.virtual.runs import virtual_experiment, virtual_search
from bakeoff.results.log.search import Over
from benchmarks.bars import Bars

KINDS, BLOCKS = 16, 40
"""Different sessions, and how often a file has them all. Each trial plays the file in order from its beginning, so the
first sessions must be like the rest: of 600 different ones, the first thirty called 5 % less often."""
LONG_S, SETTLED_S = 6000.0, 300.0
LOW, HIGH = 16, 512
WINDOW_S = 20.0


class Call(msgspec.Struct, frozen=True):
    """One call of a session: it begins ``pause_s`` after the last end of the calls at ``parents``."""

    parents: tuple[int, ...]
    pause_s: float
    prompt_tokens: int
    tokens: int
    agent: str = ""


class Server(msgspec.Struct, frozen=True):
    """A batching server with the objective that its capacity is for.

    Attributes:
        name: of the server.
        batch: time of a step.
        slots: answers that a step can hold.
        slo: the objective: a bound that a tenth of the calls may exceed.
        ttft_s: longest TTFT; infinite if it is not bounded.
        rate: least tokens per second of a call, from when it is due to its last token; 0 if it is not bounded.
    """

    name: str
    batch: Batched
    slots: int
    slo: str
    ttft_s: float = math.inf
    rate: float = 0.0

    def is_late(self, due_s: float, first_s: float, last_s: float, tokens: int) -> bool:
        """Whether a call exceeds the bound."""
        return first_s - due_s >= self.ttft_s or tokens <= self.rate * (last_s - due_s)


SERVERS = [
    Server("wide batch, pace", Batched(step_s=0.025, row_s=0.0025, prompt_token_s=0.0001), 512,
           "interactivity_p90>7", rate=7.0),
    Server("full batch, first token", Batched(step_s=0.07, row_s=0.0015, prompt_token_s=0.0002), 32,
           "ttft_p90<1s", ttft_s=1.0),
]  # fmt: skip


def session(rng: random.Random) -> list[Call]:
    """A main agent of two to five steps; before some of them, it waits for two to four sub-agents of one to three."""

    def call(parents: tuple[int, ...], agent: str = "") -> int:
        pause_s = rng.uniform(2.0, 14.0) if parents else 0.0  # a session begins with its first call
        calls.append(Call(parents, pause_s, rng.randint(20, 60), rng.randint(4, 16), agent))
        return len(calls) - 1

    calls: list[Call] = []
    last: tuple[int, ...] = ()
    for step in range(rng.randint(2, 5)):
        main = call(last)
        last = (main,)
        if rng.random() < 0.4:
            last = ()
            for helper in range(rng.randint(2, 4)):
                end = main
                for _ in range(rng.randint(1, 3)):
                    end = call((end,), f"helper {step}.{helper}")
                last = (*last, end)
    return calls


class Simulation:
    """A closed loop of agents on a batching server: each plays one random session after another.

    Args:
        server: to simulate.
        sessions: to draw from.
        agents: sessions in progress.
        rng: of the draws.
    """

    def __init__(self, server: Server, sessions: list[list[Call]], agents: int, rng: random.Random) -> None:
        self._server, self._sessions, self._rng = server, sessions, rng
        self._due: list[tuple[float, int, int, int]] = []
        self._plays: list[tuple[list[Call], dict[int, float]]] = []
        self.calls = self.late = 0
        for agent in range(agents):
            self._plays.append(([], {}))
            self._begin(agent, rng.uniform(0.0, 40.0))

    def _begin(self, agent: int, now_s: float) -> None:
        calls = self._rng.choice(self._sessions)
        self._plays[agent] = (calls, {})
        self._plan(agent, now_s, [number for number, call in enumerate(calls) if not call.parents])

    def _plan(self, agent: int, now_s: float, numbers: list[int]) -> None:
        calls, _ = self._plays[agent]
        for number in numbers:
            heapq.heappush(self._due, (now_s + calls[number].pause_s, agent, number, 0))

    def _end(self, agent: int, number: int, now_s: float) -> None:
        calls, ended_s = self._plays[agent]
        ended_s[number] = now_s
        if len(ended_s) == len(calls):
            self._begin(agent, now_s)
            return
        waiting = (child for child, call in enumerate(calls) if number in call.parents)
        self._plan(agent, now_s, [child for child in waiting if all(p in ended_s for p in calls[child].parents)])

    def late_share(self) -> float:
        """Play to the end; returns the share of calls, due after the settling, that exceed the bound."""
        batch, now_s = self._server.batch, 0.0
        queue: list[tuple[float, int, int]] = []
        rows: list[list[Any]] = []  # due, agent, number, tokens left, time of the first token
        while now_s < LONG_S:
            if not rows and not queue:
                now_s = max(now_s, self._due[0][0])
            while self._due and self._due[0][0] <= now_s:
                due_s, agent, number, _ = heapq.heappop(self._due)
                queue.append((due_s, agent, number))
            room = self._server.slots - len(rows)
            joining, queue = queue[:room], queue[room:]
            prompt_tokens = 0
            for due_s, agent, number in joining:
                call = self._plays[agent][0][number]
                prompt_tokens += call.prompt_tokens
                rows.append([due_s, agent, number, call.tokens, None])
            now_s += batch.step_s + len(rows) * batch.row_s + prompt_tokens * batch.prompt_token_s
            for row in rows:
                row[3] -= 1
                if row[4] is None:
                    row[4] = now_s
            for due_s, agent, number, left, first_s in rows:
                if left:
                    continue
                if due_s >= SETTLED_S:
                    tokens = self._plays[agent][0][number].tokens
                    self.calls += 1
                    self.late += self._server.is_late(due_s, first_s, now_s, tokens)
                self._end(agent, number, now_s)
            rows = [row for row in rows if row[3]]
        return self.late / self.calls


def population() -> list[list[Call]]:
    """The sessions that searches and simulations draw from."""
    rng = random.Random("sessions of agents")
    return [session(rng) for _ in range(KINDS)]


def late_share(server: Server, sessions: list[list[Call]], agents: int) -> float:
    return Simulation(server, sessions, agents, random.Random(agents)).late_share()


def capacity(server: Server, sessions: list[list[Call]]) -> float:
    """The number of agents at which a tenth of the calls are late, interpolated between neighbours."""
    low, high = LOW, HIGH
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if late_share(server, sessions, middle) <= 0.1 else (low, middle)
    # a straight line through the logits around the crossing is steadier than one pair of neighbours
    counts = [round(low * factor) for factor in (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)]
    shares = [late_share(server, sessions, count) for count in counts]
    x, y = [math.log(count) for count in counts], [math.log(share / (1 - share)) for share in shares]
    slope, intercept = statistics.linear_regression(x, y)
    return math.exp((math.log(0.1 / 0.9) - intercept) / slope)


def write_sessions(sessions: list[list[Call]], path: Path, rng: random.Random) -> None:
    """The same sessions as a file of the workload ``sessions``: blocks that have each once, in random order."""
    lines: list[str] = []
    played = [calls for _ in range(BLOCKS) for calls in rng.sample(sessions, len(sessions))]
    for number, calls in enumerate(played):
        turns = [
            {
                "input_tokens": call.prompt_tokens, "output_tokens": call.tokens,
                "prompt": " ".join(["word"] * call.prompt_tokens), "think_s": call.pause_s,
                "parents": list(call.parents), "agent": call.agent,
            }
            for call in calls
        ]  # fmt: skip
        lines.append(json.dumps({"id": f"s{number}", "turns": turns}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def searched(job: tuple[int, int]) -> tuple[float, float, float, int]:
    """The number of agents found, the ends of its interval, and the number of trials."""
    server, seed = SERVERS[job[0]], job[1]
    with tempfile.TemporaryDirectory(prefix="bakeoff-agents-", dir="/dev/shm") as name:
        path = Path(name) / "sessions.jsonl"
        write_sessions(population(), path, random.Random(seed))
        experiment = virtual_experiment(
            ["engine"], [{"concurrency": LOW}, {"concurrency": HIGH}], seed=seed, trial={"duration_s": WINDOW_S},
            workload={"name": "sessions", "options": {"path": str(path)}},
        )  # fmt: skip
        config = search_config(experiment, server.slo, over=Over.CONCURRENCY)
        engine = VirtualEngine(service=server.batch, slots=server.slots)
        run = virtual_search(experiment, {"engine": engine}, Path(name) / "runs", config, seed=seed)
    assert run.search is not None
    (found,) = run.search.engines
    return found.level or LOW, found.low or 0.0, found.high or math.inf, len(found.attempts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=100, help="of each server (default: %(default)s)")
    parser.add_argument("--only", default="", help="servers whose names hold this text")
    parser.add_argument("--processes", type=int, help="default: one for each core")
    options = parser.parse_args()
    bars, sessions = Bars(), population()
    print(f"{'server':<24} {'agents':>7} {'found':>16} {'spread':>7} {'covers':>7} {'width':>6} {'trials':>6}")
    with ProcessPoolExecutor(options.processes) as pool:
        trues = list(pool.map(partial(_capacity_of, sessions), SERVERS))
        for number, (server, true) in enumerate(zip(SERVERS, trues, strict=True)):
            if options.only not in server.name:
                continue
            rows = list(pool.map(searched, [(number, seed) for seed in range(options.searches)]))
            errors = [math.log(level / true) for level, *_ in rows]
            bias, spread = statistics.fmean(errors), statistics.stdev(errors)
            covers = statistics.fmean(low <= math.floor(true) <= high for _, low, high, _ in rows)  # levels are whole
            width = statistics.median(math.log(high / max(low, 1e-9)) for _, low, high, _ in rows)
            trials = statistics.fmean(row[3] for row in rows)
            found = f"{bias:+.1%} ± {spread / math.sqrt(len(rows)):.1%}"
            figures = f"{spread:>7.1%} {covers:>7.0%} {width:>6.0%} {trials:>6.1f}"
            print(f"{server.name:<24} {true:>7.1f} {found:>16} {figures}", flush=True)
            key = server.name.replace(",", "").replace(" ", "_")
            bars.add(f"{key}_agents", true, ">=", 100)
            bars.add(f"{key}_bias", abs(bias), "<=", 0.03)
            bars.add(f"{key}_coverage", covers, ">=", 0.88)
    bars.finish()


def _capacity_of(sessions: list[list[Call]], server: Server) -> float:
    return capacity(server, sessions)


if __name__ == "__main__":
    main()
