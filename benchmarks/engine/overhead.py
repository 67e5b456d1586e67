"""Bar 6: what a decode step of 32 sequences costs beside the arithmetic on the model's numbers.

That is everything but `forward` and the search for each row's largest logit: scheduling, what the step's tensors are
made from, the prepared attention, the bookkeeping of what was sampled, the report, its encoding and its way into the
socket, behind which another process reads. The median of the rounds' medians; the profile printed is Python's own.
"""

import argparse
import contextlib
import cProfile
import pstats
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.bars import Bars, model_argument
from reference_engine.engine import runner
from reference_engine.engine.beam_engine import BeamSearchEngine
from reference_engine.engine.config import EngineConfig
from reference_engine.engine.request import Request, SamplingParams
from reference_engine.offline import load_engine
from reference_engine.serving.core.channel import Channel

READER = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\nwhile s.recv(1 << 16): pass"
BATCH, CONTEXT, ROUNDS, STEPS, GOAL_MS = 32, 256, 5, 200, 0.5


def decoding(model: str) -> BeamSearchEngine:
    """An engine in which 32 sequences of some length decode."""
    engine = load_engine(EngineConfig(model=model, device="cpu", max_model_len=2048, max_num_seqs=BATCH))
    for number in range(BATCH):
        # Each its own, as from a server; no model of so few tokens says one of them.
        params = SamplingParams(
            max_tokens=(ROUNDS + 2) * STEPS, temperature=0.0, stop_token_ids=frozenset({1 << 20, number + (1 << 20)})
        )
        engine.add(Request(str(number), [1 + (number * 31 + i) % 9_999 for i in range(CONTEXT)], params))
    seen: set[str] = set()
    while len(seen) < BATCH:
        seen |= {output.request_id for output in engine.step().outputs}
    return engine


@contextlib.contextmanager
def reader() -> Iterator[Channel]:
    """The core's end of a socket that somebody empties, as the server does."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", READER, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]):
        theirs.close()
        channel = Channel(ours)
        try:
            yield channel
        finally:
            channel.close()


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    engine = decoding(parser.parse_args().model)
    model: Any = engine.core._runner._executor._model  # noqa: SLF001
    model.hidden, hidden_s = timed(model.hidden)
    model.logits, logits_s = timed(model.logits)
    runner.argmax, argmax_s = timed(runner.argmax)
    parts: dict[str, list[float]] = {"whole step": [], "model": [], "argmax": [], "emit": [], "overhead": []}
    with reader() as channel:
        for _ in range(ROUNDS * STEPS):
            began = time.perf_counter()
            report = engine.step()
            made = time.perf_counter()
            channel.send(report)
            ended = time.perf_counter()
            assert len(report.outputs) == BATCH
            model_s = hidden_s[-1] + logits_s[-1]
            overhead = ended - began - model_s - argmax_s[-1]
            for part, seconds in zip(
                parts.values(),
                (ended - began, model_s, argmax_s[-1], ended - made, overhead),
                strict=True,
            ):
                part.append(1e3 * seconds)
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(STEPS):
            channel.send(engine.step())
        profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(16)
    for name, times in parts.items():
        print(f"{name:12} median {statistics.median(times):8.3f} ms, best {min(times):8.3f} ms")
    bars = Bars()
    rounds = [statistics.median(parts["overhead"][first : first + STEPS]) for first in range(0, ROUNDS * STEPS, STEPS)]
    print("overhead of each round:", ", ".join(f"{one:.3f}" for one in rounds), "ms")
    bars.add("step_overhead_ms", statistics.median(rounds), "<=", GOAL_MS)
    bars.finish()


def timed(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[float]]:
    """The function, and the list to which each call adds its seconds."""
    seconds: list[float] = []

    def call(*arguments: Any) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        answer = function(*arguments)
        seconds.append(time.perf_counter() - began)
        return answer

    return call, seconds


if __name__ == "__main__":
    main()
