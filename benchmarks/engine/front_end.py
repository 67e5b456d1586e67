"""CPU time of the HTTP server process for each streamed token, without the engine's and the client's.

The server is the real one, in a process of its own, with uvloop and the checkpoint's tokenizer; its CPU time is read
from outside. Its engine process computes nothing and reports one token for each stream every few milliseconds. The
client stores the bytes and checks afterwards that no token is missing. The requests are like the harness's (token ids,
usage at the end). `bare writes` is a server that only writes an event of about the same size to each stream in every
step, which is mostly the system call.

The goal of 15 µs in total is not met (docs/decisions/reference-engine-front-end.md): the bars apply it to the time
beyond the bare writes. Figures are medians of the rounds.

`--profile` runs one round of each under cProfile, which about doubles the time: its figures show where the time goes,
not how long it is.
"""

import argparse
import contextlib
import json
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from typing import NamedTuple

from bakeoff.engines import pick_port
from bakeoff.harness.host.environment import cpu_model
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.sides.front_end_plan import SILENCE_S, WARM_UP_STEPS, Plan

BATCHES, ROUNDS, GOAL_US = (1, 8, 64, 256), 5, 15.0
FIRST_BYTE_S = 20.0
LEAST_STREAMS = 64  # with fewer, most of the cost is that of a step, which the streams share
TEXT = (
    "Paged attention keeps the keys and values of a sequence in blocks, so that memory is given out as it is needed. "
    'The scheduler said: "42 requests wait"; it cost 3.50 € or so, naïvely, and everybody was happy 😀.\n'
) * 2


class Cost(NamedTuple):
    """Cost of one round.

    Attributes:
        cpu_us: microseconds of the server's CPU per token.
        writes: chunks of the chunked encoding per token.
    """

    cpu_us: float
    writes: float


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process; the clock's id is computed as in clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


@contextlib.contextmanager
def serving(model: str, num_streams: int, *flags: str) -> Generator[tuple[int, int]]:
    """Start a server process; yields its process id and port."""
    port = pick_port()
    name = "benchmarks.engine.sides.front_end_server"
    command = [sys.executable, "-m", name, model, str(num_streams), str(port), *flags]
    output = None if "--profile" in flags else subprocess.DEVNULL
    with subprocess.Popen(command, stderr=output) as server:
        try:
            wait_until_ready(server, port, is_bare="--bare" in flags)
            yield server.pid, port
        finally:
            server.send_signal(signal.SIGINT)


def wait_until_ready(server: "subprocess.Popen[bytes]", port: int, *, is_bare: bool) -> None:
    while server.poll() is None:
        with contextlib.suppress(OSError):
            if is_bare:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                return
        time.sleep(0.05)
    sys.exit(f"the server ended with {server.returncode}")


def request_bytes(plan: Plan, port: int, route: str) -> bytes:
    """The HTTP request of one stream."""
    tokens = WARM_UP_STEPS + plan.num_steps + 1
    fields = {"prompt": TEXT} if route == "completions" else {"messages": [{"role": "user", "content": TEXT}]}
    params = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    body = json.dumps(fields | params | {"return_token_ids": True, "stream_options": {"include_usage": True}}).encode()
    path = "/v1/completions" if route == "completions" else "/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def measure(pid: int, port: int, plan: Plan, route: str) -> Cost:
    """Measure one round."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(plan.num_streams)]
        for sock in sockets:
            sock.sendall(request_bytes(plan, port, route))
        received_until_silence(sockets)
        began_s = cpu_s(pid)
        received = received_until_silence(sockets)
        spent_s = cpu_s(pid) - began_s
        received_until_silence(sockets)
    tokens = plan.num_streams * plan.num_steps
    events = sum(data.count(b"data: ") for data in received)
    if events != tokens:
        sys.exit(f"{events} events instead of {tokens}")
    return Cost(1e6 * spent_s / tokens, sum(data.count(b"\r\n") for data in received) / 2 / tokens)


def received_until_silence(sockets: list[socket.socket]) -> list[bytes]:
    """What each socket receives until none has received anything for a while; waits longer for the first byte."""
    received: dict[socket.socket, list[bytes]] = {sock: [] for sock in sockets}
    timeout_s = FIRST_BYTE_S
    with selectors.EpollSelector() as selector:
        for sock in sockets:
            selector.register(sock, selectors.EVENT_READ)
        while ready := selector.select(timeout_s):
            for key, _ in ready:
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data = sock.recv(1 << 18)
                if not data:
                    selector.unregister(sock)
                received[sock].append(data)
            timeout_s = SILENCE_S
    if timeout_s == FIRST_BYTE_S:
        sys.exit(f"no byte within {FIRST_BYTE_S:g} s")
    return [b"".join(parts) for parts in received.values()]


def medians(model: str, num_streams: int, rounds: int, route: str, *flags: str) -> Cost:
    """Medians of several rounds with one server."""
    with serving(model, num_streams, *flags) as (pid, port):
        costs = [measure(pid, port, Plan(num_streams), route) for _ in range(rounds)]
    print(f"  {num_streams:>3} {' '.join(flags):9}", " ".join(f"{cost.cpu_us:6.1f}" for cost in costs), flush=True)
    return Cost(*map(statistics.median, zip(*costs, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="concurrent streams")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each (default: %(default)s)")
    parser.add_argument("--route", choices=["completions", "chat"], default="completions")
    parser.add_argument("--profile", action="store_true", help="run under cProfile, without bars")
    options = parser.parse_args()
    if options.profile:
        for size in options.batches:
            medians(options.model, size, 1, options.route, "--profile")
        return
    print("µs of CPU per token, each round:")
    table = {
        size: (
            medians(options.model, size, options.rounds, options.route),
            medians(options.model, size, options.rounds, options.route, "--bare"),
        )
        for size in options.batches
    }
    print(f"\n{cpu_model()}\n{'streams':>8}{'µs a token':>12}{'bare writes':>13}{'writes a token':>16}")
    for size, (served, bare) in table.items():
        print(f"{size:>8}{served.cpu_us:>12.1f}{bare.cpu_us:>13.1f}{served.writes:>16.3f}")
    bars = Bars()
    for size, (served, bare) in table.items():
        if size >= LEAST_STREAMS:
            bars.add(f"beside_writes_us_per_token_{size}_streams", served.cpu_us - bare.cpu_us, "<=", GOAL_US)
        bars.add(f"writes_per_token_{size}_streams", served.writes, "<=", 1.0)
    bars.finish()


if __name__ == "__main__":
    main()
