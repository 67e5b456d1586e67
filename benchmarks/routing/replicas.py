"""Three replicas, one slow and one with half the cache, the sessions that they get, and routers before them."""

import contextlib
import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec

from bakeoff.engines import pick_port
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.run.run import Trial
from bakeoff.workloads import Seed, Session, tokenizer_at, workload
from bakeoff.workloads.presets import PresetTraffic

REPLICAS, SLOTS = 3, 8
TTFT_MS, ITL_MS, PROMPT_TOKEN_MS = 20, 10, 0.05
SLOW_REPLICA, SLOWDOWN = 2, 2.0
SMALL_REPLICA = 3
SCALE, MOST_TURNS, LONGEST_PAUSE_S, BETWEEN_STARTS_S = 0.02, 12, 1.0, 0.5


class Cache(Enum):
    """Tokens that a replica's cache holds: about those of the sessions in progress that it gets.

    The replica with half of them loses some.
    """

    ALL = 22_000
    """Calls of a session go to any replica, so each gets all sessions."""
    ITS_OWN = 16_000
    """Sessions stay at their replica."""


REPLICA_HEADER = "x-replica"
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
            add_header {header} $upstream_addr always;
        }}
    }}
}}
"""


Route = Callable[[Sequence[int], Path], AbstractContextManager[str]]
"""Puts a router, if any, before replicas on these ports, with a folder for its files; yields the keys of the engine."""

SLOW, CACHE, IMBALANCE = FindingCode.ADDRESS_SLOW, FindingCode.ADDRESS_CACHE, FindingCode.ADDRESS_IMBALANCE


class Plant(NamedTuple):
    """A finding that a trial must have, about a replica."""

    code: FindingCode
    replica: int


SLOW_ONE, SMALL_ONE = Plant(SLOW, SLOW_REPLICA), Plant(CACHE, SMALL_REPLICA)


class Policy(NamedTuple):
    """A policy, and what the findings of its trials must name.

    Attributes:
        route: to the replicas.
        cache: of the replicas.
        plants: what must be named.
        sessions: that a trial needs for its findings.
        balance: name of the client's policy; None behind a router.
    """

    route: Route
    cache: Cache
    plants: tuple[Plant, ...]
    sessions: int
    balance: str | None = None


def nginx(policy: str = "", weights: Sequence[int] | None = None) -> Route:
    """A route through nginx, with a line of its ``upstream`` block; without one it takes turns by weight."""

    @contextlib.contextmanager
    def route(ports: Sequence[int], folder: Path) -> Generator[str]:
        port = pick_port()
        servers = " ".join(
            f"server 127.0.0.1:{replica} weight={weight};"
            for replica, weight in zip(ports, weights or [1] * len(ports), strict=True)
        )
        config = folder / "nginx.conf"
        text = NGINX.format(folder=folder, policy=policy, servers=servers, port=port, header=REPLICA_HEADER)
        config.write_text(text, encoding="utf-8")
        with subprocess.Popen(["nginx", "-p", folder, "-e", "stderr", "-c", config]) as process:
            try:
                wait_for(port, process)
                router = f'{{ url = "http://127.0.0.1:{port}", role = "router" }}'
                yield f'replica_header = "{REPLICA_HEADER}"\nurls = [{router}, {urls(ports)}]'
            finally:
                process.terminate()

    return route


def direct(balance: str) -> Route:
    """A route without a router: the client divides requests by a policy of its own."""

    @contextlib.contextmanager
    def route(ports: Sequence[int], folder: Path) -> Generator[str]:  # noqa: ARG001
        yield f'balance = "{balance}"\nurls = [{urls(ports)}]'

    return route


def urls(ports: Sequence[int]) -> str:
    """The addresses of replicas in TOML."""
    return ", ".join(f'{{ url = "http://127.0.0.1:{port}" }}' for port in ports)


SCATTERED, KEPT = 480, 960
"""Sessions of a trial. Hits at an address correlate over the life of the sessions that it keeps, about 10 s, and a
difference needs 20 independent stretches of time (``MIN_BLOCKS`` of :mod:`bakeoff.results.statistics.within`)."""


def own(balance: str, cache: Cache, *plants: Plant) -> Policy:
    """A policy of the client."""
    sessions = KEPT if cache is Cache.ITS_OWN else SCATTERED
    return Policy(direct(balance), cache, (SLOW_ONE, SMALL_ONE, *plants), sessions, balance)


POLICIES: dict[str, Policy] = {
    "round-robin": own("round-robin", Cache.ALL),
    # The slow replica has more in flight, so it gets less.
    "least-in-flight": own("least-in-flight", Cache.ALL, Plant(IMBALANCE, SLOW_REPLICA)),
    "by-session": own("by-session", Cache.ITS_OWN),
    "prefix-aware": own("prefix-aware", Cache.ITS_OWN),
    "nginx, round robin": Policy(nginx(), Cache.ALL, (SLOW_ONE, SMALL_ONE), SCATTERED),
    "nginx, weights 2, 1, 1": Policy(nginx(weights=(2, 1, 1)), Cache.ALL, (SLOW_ONE, Plant(IMBALANCE, 1)), SCATTERED),
    "nginx, hash of X-Session-ID": Policy(
        nginx("hash $http_x_session_id consistent;"), Cache.ITS_OWN, (SLOW_ONE, SMALL_ONE), KEPT
    ),
}


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


def cache_tokens(replica: int, cache: Cache) -> int:
    """Size of a replica's cache."""
    return cache.value // (2 if replica == SMALL_REPLICA else 1)


def slowdown(replica: int) -> float:
    """Factor on all times of a replica."""
    return SLOWDOWN if replica == SLOW_REPLICA else 1.0


@contextlib.contextmanager
def replicas(log: Path, cache: Cache) -> Generator[list[int]]:
    """The ports of replicas with empty caches."""
    options = ["--ttft-ms", TTFT_MS, "--itl-ms", ITL_MS, "--prompt-token-ms", PROMPT_TOKEN_MS, "--slots", SLOTS]
    for replica in range(1, REPLICAS + 1):
        options += ["--slow", f"{replica}={slowdown(replica)}"]
        options += ["--cache-tokens", f"{replica}={cache_tokens(replica, cache)}"]
    command = [sys.executable, "-m", "bakeoff", "lab", "truth", "--replicas", REPLICAS, "--log", log, *options]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [int(process.stdout.readline().rpartition(":")[2]) for _ in range(REPLICAS)]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def agents(count: int, seed: int) -> list[Session]:
    """The beginnings of agents' sessions, started one after the other."""
    traffic = workload("agentic-tools", {"scale": SCALE})
    assert isinstance(traffic, PresetTraffic)
    beginnings = dict.fromkeys(range(count), MOST_TURNS)
    drawn = traffic.chosen(tokenizer_at("approximate"), Seed(str(seed), str(seed)), beginnings)
    return [
        msgspec.structs.replace(
            session,
            start_s=number * BETWEEN_STARTS_S,
            turns=tuple(
                msgspec.structs.replace(turn, think_s=min(turn.think_s, LONGEST_PAUSE_S)) for turn in session.turns
            ),
        )
        for number, session in enumerate(drawn)
    ]


def named(trial: Trial, replicas: Mapping[str, int]) -> set[Plant]:
    """What the findings of a trial say of its addresses.

    Args:
        trial: a trial.
        replicas: number of each by the label of its address.
    """
    return {
        Plant(finding.code, replicas[str(finding.parameters["address"])])
        for finding in trial.record.findings
        if finding.code in {SLOW, CACHE, IMBALANCE}
    }
