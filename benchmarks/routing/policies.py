"""Three replicas without a GPU, one slow and one with half the cache, behind each policy of a router.

    python -m benchmarks.routing.policies [--sessions 24] [--seed 1]        (apt install nginx)

The sessions are agents' (preset agentic-tools, a tenth of its lengths, pauses of at most a second): each prompt begins
with the one before it. Each policy meets empty caches and the same sessions. What a replica says of itself on its
metrics page is compared with its log, answer by answer.
"""

import argparse
import contextlib
import http.client
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bakeoff.engines import pick_port
from bakeoff.engines.adapters.vllm import METRICS
from bakeoff.engines.metrics.readers import EngineValues, reader_of
from bakeoff.harness.truth import Ending, Schedule
from bakeoff.harness.truth.answered import ReplicaAnswered
from bakeoff.harness.truth.record import lateness_s, ttft_s
from bakeoff.results.files.jsonl import read_log
from bakeoff.workloads import Seed, Session, tokenizer_at, workload
from benchmarks.bars import Bars

REPLICAS, SLOTS = 3, 8
TTFT_MS, ITL_MS, PROMPT_TOKEN_MS = 20, 10, 0.1
SLOW = {2: 1.5}
CACHE_TOKENS = {1: 60_000, 2: 60_000, 3: 30_000}
SCALE, MOST_TURNS, LONGEST_PAUSE_S, BETWEEN_STARTS_S = 0.1, 12, 1.0, 1.0
NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_buffer_size 64m;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/unused-fastcgi;
    uwsgi_temp_path {folder}/unused-uwsgi;
    scgi_temp_path {folder}/unused-scgi;
    upstream replicas {{
        {policy}
        {servers}
        keepalive 64;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_next_upstream off;
        }}
    }}
}}
"""

Route = Callable[[Sequence[int], Path], AbstractContextManager[str]]
"""Puts a router before replicas on these ports, with a folder for its files; yields the engine's address as TOML."""


def nginx(policy: str) -> Route:
    """A route through nginx, with a line of its ``upstream`` block; without one it takes turns."""

    @contextlib.contextmanager
    def route(ports: Sequence[int], folder: Path) -> Generator[str]:
        port = pick_port()
        servers = " ".join(f"server 127.0.0.1:{replica};" for replica in ports)
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, policy=policy, servers=servers, port=port), encoding="utf-8")
        with subprocess.Popen(["nginx", "-p", folder, "-e", "stderr", "-c", config]) as process:
            try:
                wait_for(port, process)
                yield f'url = "http://127.0.0.1:{port}"'
            finally:
                process.terminate()

    return route


POLICIES: dict[str, Route] = {
    "nginx, round robin": nginx(""),
    "nginx, hash of X-Session-ID": nginx("hash $http_x_session_id consistent;"),
}
"""A policy of the client's own would yield the addresses of all replicas, and the policy's name, from its route."""


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


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until something listens."""
    while process.poll() is None:
        with contextlib.suppress(OSError):
            page(port, "/health")
            return
        time.sleep(0.02)
    sys.exit("nginx did not start")


def page(port: int, path: str) -> bytes:
    """A page of a server on this machine."""
    client = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(client):
        client.request("GET", path)
        return client.getresponse().read()


@contextlib.contextmanager
def replicas(log: Path) -> Generator[list[int]]:
    """The ports of replicas with empty caches."""
    options = ["--ttft-ms", TTFT_MS, "--itl-ms", ITL_MS, "--prompt-token-ms", PROMPT_TOKEN_MS, "--slots", SLOTS]
    for replica in range(1, REPLICAS + 1):
        options += [
            "--slow",
            f"{replica}={SLOW.get(replica, 1.0)}",
            "--cache-tokens",
            f"{replica}={CACHE_TOKENS[replica]}",
        ]
    command = [sys.executable, "-m", "bakeoff", "truth", "--replicas", REPLICAS, "--log", log, *options]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [int(process.stdout.readline().rpartition(":")[2]) for _ in range(REPLICAS)]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def schedule_of(replica: int) -> Schedule:
    """The timing of a replica, apart from the size of its cache, which its log states for each answer."""
    times = Schedule(TTFT_MS / 1e3, ITL_MS / 1e3, slots=SLOTS, prompt_token_s=PROMPT_TOKEN_MS / 1e3)
    return times.slowed(SLOW.get(replica, 1.0))


def agents(count: int, seed: int) -> list[Session]:
    """The beginnings of agents' sessions, started one after the other."""
    drawn = workload("agentic-tools", {"scale": SCALE}).sessions(
        tokenizer_at("approximate"), Seed(str(seed), str(seed))
    )
    return [
        msgspec.structs.replace(
            session,
            start_s=number * BETWEEN_STARTS_S,
            turns=tuple(
                msgspec.structs.replace(turn, think_s=min(turn.think_s, LONGEST_PAUSE_S))
                for turn in session.turns[:MOST_TURNS]
            ),
        )
        for number, session in enumerate(itertools.islice(drawn, count))
    ]


def send(address: str, sessions: Path, seconds: float, folder: Path) -> None:
    """Send the sessions by ``bakeoff run``, once: no latency of the client is used, so no trial is measured again."""
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
adapter = "openai"
{address}
""",
        encoding="utf-8",
    )
    run = [sys.executable, "-m", "bakeoff", "run", str(experiment), "--out", str(folder / "runs")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 3}:  # 3: the trial is INVALID
        sys.exit(done.stdout + done.stderr)


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


def total(parts: Sequence[Seen]) -> Seen:
    return Seen(*map(sum, zip(*parts, strict=True)))


def measure(route: Route, sessions: Path, seconds: float) -> tuple[list[Seen], list[Seen], list[ReplicaAnswered]]:
    """Pages and logs of the replicas over one load, and all answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "replicas.jsonl"
        with replicas(log) as ports, route(ports, folder) as address:
            readers = [reader_of(METRICS) for _ in ports]
            before = [reader.read(page(port, "/metrics")) for reader, port in zip(readers, ports, strict=True)]
            send(address, sessions, seconds, folder)
            after = [reader.read(page(port, "/metrics")) for reader, port in zip(readers, ports, strict=True)]
        answers = read_log(log, ReplicaAnswered).records
    by_log = [logged([answer for answer in answers if answer.replica == i]) for i in range(1, REPLICAS + 1)]
    return list(map(shown, before, after)), by_log, answers


def differences(page: Seen, log: Seen) -> int:
    """Number of figures of a page that are not those of the log; sums of times are equal to a microsecond."""
    return sum(page[:4][i] != log[:4][i] for i in range(4)) + (abs(page.ttft_s - log.ttft_s) > 1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    drawn = agents(options.sessions, options.seed)
    planned = sum(len(session.turns) for session in drawn)
    bars, totals = Bars(), dict[str, Seen]()
    print(f"{len(drawn)} sessions, {planned} calls; replica 2 is slow, replica 3 has half the cache")
    print(f"  {'':<32} {'requests':>8} {'prompt tokens':>13} {'hit share':>9} {'mean TTFT':>11}")
    wrong, late_s, lost = 0, list[float](), 0
    with tempfile.NamedTemporaryFile("wb", suffix=".jsonl") as file:
        file.write(b"\n".join(map(msgspec.json.encode, drawn)))
        file.flush()
        for name, route in POLICIES.items():
            pages, logs, answers = measure(route, Path(file.name), options.sessions * BETWEEN_STARTS_S + 25)
            print(name)
            for replica, seen in enumerate(pages, start=1):
                print(seen.row(f"replica {replica}"))
                late_s += lateness_s([a for a in answers if a.replica == replica], schedule_of(replica))
            totals[name] = total(pages)
            print(totals[name].row("all"))
            wrong += sum(map(differences, pages, logs))
            lost += max(0, planned - sum(answer.ending is Ending.COMPLETE for answer in answers))
    scattered, kept = totals.values()
    late_s.sort()
    p50_s, p99_s = (late_s[len(late_s) * share // 100] for share in (50, 99))
    print(f"chunks late by p50 {p50_s * 1e6:.0f} us, p99 {p99_s * 1e3:.2f} ms, with all processes on the same cores")
    bars.add("page_differs_from_log", wrong, "==", 0)
    bars.add("calls_lost", lost, "==", 0)
    bars.add("hit_share_kept_minus_scattered", kept.hit_share - scattered.hit_share, ">=", 0.1)
    bars.add("ttft_scattered_over_kept", scattered.mean_ttft_ms / kept.mean_ttft_ms, ">=", 1.2)
    bars.finish()


if __name__ == "__main__":
    main()
