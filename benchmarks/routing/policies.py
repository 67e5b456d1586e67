"""Three replicas without a GPU, one slow and one with half the cache, behind each policy of a router and of the client.

    python -m benchmarks.routing.policies [--sessions 24] [--seed 1] [--trials 0] [--policy by-session]

It needs nginx (apt install nginx). The sessions are agents' (preset agentic-tools, scaled, pauses of at most a second):
each prompt begins with the one before it. In the table each policy meets empty caches of the same sizes and the same
sessions. What a replica says of itself on its metrics page, and what the run says of its address, is compared with its
log. A policy of the client names the address of each request; behind nginx the run has the replicas' pages alone.

``--trials`` repeats the load with other seeds, as many sessions as each policy's findings need, and counts those whose
findings name what is planted; :mod:`benchmarks.routing.findings` does the same in virtual time.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bakeoff.engines.adapters.vllm import METRICS
from bakeoff.engines.metrics.readers import EngineValues, reader_of
from bakeoff.harness.truth import Ending, Schedule
from bakeoff.harness.truth.answered import ReplicaAnswered
from bakeoff.harness.truth.record import lateness_s, ttft_s
from bakeoff.results import load
from bakeoff.results.files.jsonl import read_log
from bakeoff.results.metrics.latency import ttft_from_send_s
from bakeoff.results.run.address_pages import address_pages
from bakeoff.results.run.run import Run
from bakeoff.workloads import Session
from benchmarks.bars import Bars
from benchmarks.routing.replicas import (
    BETWEEN_STARTS_S,
    ITL_MS,
    POLICIES,
    PROMPT_TOKEN_MS,
    REPLICAS,
    SLOTS,
    TTFT_MS,
    Cache,
    Plant,
    Policy,
    agents,
    named,
    page,
    replicas,
    slowdown,
)


class Seen(NamedTuple):
    """What one replica did under one policy."""

    requests: float
    prompt_tokens: float
    hit_tokens: float
    output_tokens: float
    ttft_s: float
    """Sum over its answers."""

    @property
    def hit_share(self) -> float:
        """Fraction of the prompt tokens that the cache held."""
        return self.hit_tokens / max(1.0, self.prompt_tokens)

    @property
    def mean_ttft_ms(self) -> float:
        """Mean time to the first token, in milliseconds."""
        return 1000 * self.ttft_s / max(1.0, self.requests)

    def row(self, name: str) -> str:
        """A line of the table."""
        return (
            f"  {name:<32} {self.requests:>8.0f} {self.prompt_tokens:>13,.0f} {self.hit_share:>9.1%} "
            f"{self.mean_ttft_ms:>8.0f} ms"
        )


class Measured(NamedTuple):
    """One load under one policy.

    Attributes:
        pages: what each replica's page says.
        logs: what its log says.
        answers: of all replicas.
        run: that sent the load.
        labels: of the addresses, in the order of the replicas.
    """

    pages: list[Seen]
    logs: list[Seen]
    answers: list[ReplicaAnswered]
    run: Run
    labels: list[str]


def schedule_of(replica: int) -> Schedule:
    """The timing of a replica, apart from the size of its cache, which its log states for each answer."""
    times = Schedule(TTFT_MS / 1e3, ITL_MS / 1e3, slots=SLOTS, prompt_token_s=PROMPT_TOKEN_MS / 1e3)
    return times.slowed(slowdown(replica))


def send(keys: str, sessions: Path, seconds: float, folder: Path) -> Run:
    """Send the sessions by ``bakeoff run``, once: no latency of the client is judged, so no trial is measured again."""
    experiment = folder / "routing.toml"
    experiment.write_text(
        f"""
name = "routing"
repeats = 1
model = {{ name = "truth", tokenizer = "approximate" }}
workload = {{ name = "sessions", options = {{ path = "{sessions}" }} }}
loads = [{{ arrival = "workload" }}]
trial = {{ duration_s = {seconds}, timeout_s = 60, warm_up_s = 0, max_foreign_share = 1.0 }}
client = {{ calibrate = false, max_error_share = 1000 }}
[[engines]]
adapter = "vllm"
{keys}
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "bakeoff", "run", str(experiment), "--out", str(folder / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 3}:  # 3: the trial is INVALID
        sys.exit(done.stdout + done.stderr)
    (path,) = (folder / "runs").glob("*-routing-*")
    return load(path)


def shown(before: EngineValues, after: EngineValues) -> Seen:
    """What a replica's metrics page says that it did in between."""
    names = (
        "ttft_s_count", "prefix_queries_tokens_total", "prefix_hits_tokens_total", "output_tokens_total", "ttft_s_sum"
    )  # fmt: skip
    return Seen(*((after[name] or 0.0) - (before[name] or 0.0) for name in names))


def logged(answers: Sequence[ReplicaAnswered]) -> Seen:
    """What its log says."""
    return Seen(
        len(answers),
        sum(answer.prompt_tokens for answer in answers),
        sum(answer.cached_tokens or 0 for answer in answers),
        sum(answer.tokens for answer in answers),
        sum(ttft_s(answers)),
    )


def by_client(run: Run, label: str) -> Seen:
    """What the client recorded of the requests that it sent to an address."""
    (trial,) = run.finished
    requests = [request for request in trial.requests if request.address == label]
    return Seen(
        len(requests),
        sum(request.prompt_tokens or 0 for request in requests),
        sum(request.cached_tokens or 0 for request in requests),
        sum(request.total_chunk_tokens for request in requests),
        sum(ttft_from_send_s(request) or 0.0 for request in requests),
    )


def total(parts: Sequence[Seen]) -> Seen:
    return Seen(*map(sum, zip(*parts, strict=True)))


def measure(policy: Policy, sessions: Sequence[Session], cache: Cache) -> Measured:
    """One load under one policy, with caches of this size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, path = folder / "replicas.jsonl", folder / "sessions.jsonl"
        path.write_bytes(b"\n".join(map(msgspec.json.encode, sessions)))
        with replicas(log, cache) as ports, policy.route(ports, folder) as keys:
            readers = [reader_of(METRICS) for _ in ports]
            before = [reader.read(page(port, "/metrics")) for reader, port in zip(readers, ports, strict=True)]
            run = send(keys, path, len(sessions) * BETWEEN_STARTS_S + 25, folder)
            after = [reader.read(page(port, "/metrics")) for reader, port in zip(readers, ports, strict=True)]
            _ = run.finished[0].requests, run.finished[0].telemetry  # read from the folder
        answers = read_log(log, ReplicaAnswered).records
    by_log = [logged([answer for answer in answers if answer.replica == i]) for i in range(1, REPLICAS + 1)]
    labels = [f"127.0.0.1:{port}" for port in ports]
    return Measured(list(map(shown, before, after)), by_log, answers, run, labels)


def differences(page: Seen, log: Seen) -> int:
    """Number of figures of a page that are not those of the log; sums of times are equal to a microsecond."""
    return counts_that_differ(page, log) + (abs(page.ttft_s - log.ttft_s) > 1e-6)


def counts_that_differ(one: Seen, other: Seen) -> int:
    """Number of counts that differ; times are not compared."""
    return sum(one[:4][i] != other[:4][i] for i in range(4))


def address_differences(measured: Measured, *, direct: bool) -> int:
    """Number of figures by address of a run that are not those of the logs: the client's, or those of the pages."""
    if direct:
        seen = [by_client(measured.run, label) for label in measured.labels]
        return sum(map(counts_that_differ, seen, measured.logs))
    pages = {row.address: row for row in address_pages(measured.run)}
    return sum(
        (row is None or row.requests != log.requests)
        + (row is None or abs((row.hit_share or 0.0) - log.hit_share) > 1e-9)
        for label, log in zip(measured.labels, measured.logs, strict=True)
        for row in [pages.get(label)]
    )


def repeated(names: Sequence[str], trials: int, first_seed: int, bars: Bars) -> None:
    """Count the trials whose findings name what is planted; a bar for each plant."""
    counts = {name: Counter[Plant]() for name in names}
    for seed in range(first_seed, first_seed + trials):
        drawn = agents(max(POLICIES[name].sessions for name in names), seed)
        for name in names:
            measured = measure(POLICIES[name], drawn[: POLICIES[name].sessions], POLICIES[name].cache)
            (trial,) = measured.run.finished
            places = {label: number for number, label in enumerate(measured.labels, start=1)}
            found = named(trial, places)
            counts[name].update(found)
            print(f"seed {seed}, {name}: {trial.record.verdict}, {len(trial.requests)} requests,", end=" ")
            print(", ".join(f"{plant.code.value} {plant.replica}" for plant in sorted(found)) or "nothing", flush=True)
    for name in names:
        for plant in POLICIES[name].plants:
            bars.add(f"{name}: {plant.code.value} {plant.replica}", counts[name][plant], "==", trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=24, help="of the table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=0, help="whose findings are counted, for each policy")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: all")
    options = parser.parse_args()
    names: list[str] = options.policy or list(POLICIES)
    drawn = agents(options.sessions, options.seed)
    planned = sum(len(session.turns) for session in drawn)
    bars, totals = Bars(), dict[str, Seen]()
    print(f"{len(drawn)} sessions, {planned} calls; replica 2 is slow, replica 3 has half the cache")
    print(f"  {'':<32} {'requests':>8} {'prompt tokens':>13} {'hit share':>9} {'mean TTFT':>11}")
    wrong, wrong_by_address, late_s, lost, errors_s = 0, 0, list[float](), 0, list[float]()
    for name in names:
        policy = POLICIES[name]
        measured = measure(policy, drawn, Cache.ITS_OWN)
        print(name)
        for replica, (seen, log) in enumerate(zip(measured.pages, measured.logs, strict=True), start=1):
            print(seen.row(f"replica {replica}"))
            late_s += lateness_s([a for a in measured.answers if a.replica == replica], schedule_of(replica))
            if policy.balance and log.requests:
                client = by_client(measured.run, measured.labels[replica - 1])
                errors_s.append(abs(client.mean_ttft_ms - log.mean_ttft_ms) / 1e3)
        totals[name] = total(measured.pages)
        print(totals[name].row("all"))
        wrong += sum(map(differences, measured.pages, measured.logs))
        wrong_by_address += address_differences(measured, direct=policy.balance is not None)
        lost += max(0, planned - sum(answer.ending is Ending.COMPLETE for answer in measured.answers))
    late_s.sort()
    p50_s, p99_s = (late_s[len(late_s) * share // 100] for share in (50, 99))
    print(f"chunks late by p50 {p50_s * 1e6:.0f} us, p99 {p99_s * 1e3:.2f} ms, with all processes on the same cores")
    bars.add("page_differs_from_log", wrong, "==", 0)
    bars.add("figures_by_address_differ_from_log", wrong_by_address, "==", 0)
    bars.add("calls_lost", lost, "==", 0)
    if errors_s:
        print(f"mean TTFT of an address differs from its log by at most {max(errors_s) * 1e3:.2f} ms")
        bars.add("ttft_error_over_lateness_p99", max(errors_s) / p99_s, "<=", 1)
    for scattered, kept in (("round-robin", "by-session"), ("nginx, round robin", "nginx, hash of X-Session-ID")):
        if scattered in totals and kept in totals:
            one, other = totals[scattered], totals[kept]
            bars.add(f"{kept}: hit share above {scattered}", other.hit_share - one.hit_share, ">=", 0.1)
    if options.trials:
        repeated(names, options.trials, options.seed, bars)
    bars.finish()


if __name__ == "__main__":
    main()
