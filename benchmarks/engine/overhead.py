"""Overhead of a decode step of 32 sequences, beside the model's arithmetic.

The overhead is everything but `forward` and the argmax of each row: scheduling, the data of the step's tensors, the
preparation of attention, the bookkeeping of sampled tokens, the report, its encoding, and its transfer to a socket that
another process reads. The figure is the median of the rounds' medians; the printed profile is that of cProfile.
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

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine import runner
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.offline import load_engine
from bakeoff.reference_engine.serving.core.channel import Channel
from benchmarks.bars import Bars, model_argument

READER = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\nwhile s.recv(1 << 16): pass"
BATCH, CONTEXT, ROUNDS, STEPS, GOAL_MS = 32, 256, 5, 200, 0.5


def decoding(model: str) -> BeamSearchEngine:
    """Load an engine and prefill 32 sequences, so that all decode."""
    engine = load_engine(EngineConfig(model=model, device="cpu", max_model_len=2048, max_num_seqs=BATCH))
    for number in range(BATCH):
        # Each request has its own stop tokens, as from a server; these are outside the vocabulary, so never sampled.
        params = SamplingParams(
            max_tokens=(ROUNDS + 2) * STEPS, temperature=0.0, stop_token_ids=frozenset({1 << 20, number + (1 << 20)})
        )
        engine.add(Request(str(number), [1 + (number * 31 + i) % 9_999 for i in range(CONTEXT)], params))
    started_ids: set[str] = set()
    while len(started_ids) < BATCH:
        started_ids |= {output.request_id for output in engine.step().outputs}
    return engine


@contextlib.contextmanager
def reader() -> Iterator[Channel]:
    """Yield the core's end of a socket that another process reads, as the server does."""
    core_end, reader_end = socket.socketpair()
    command = [sys.executable, "-c", READER, str(reader_end.fileno())]
    with subprocess.Popen(command, pass_fds=[reader_end.fileno()]):
        reader_end.close()
        channel = Channel(core_end)
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
            stepped = time.perf_counter()
            channel.send(report)
            ended = time.perf_counter()
            assert len(report.outputs) == BATCH
            model_s = hidden_s[-1] + logits_s[-1]
            overhead = ended - began - model_s - argmax_s[-1]
            for part, seconds in zip(
                parts.values(),
                (ended - began, model_s, argmax_s[-1], ended - stepped, overhead),
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
    print("overhead of each round:", ", ".join(f"{median:.3f}" for median in rounds), "ms")
    bars.add("step_overhead_ms", statistics.median(rounds), "<=", GOAL_MS)
    bars.finish()


def timed(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[float]]:
    """Wrap a function; returns the wrapper and the list to which each call appends its seconds."""
    seconds: list[float] = []

    def call(*arguments: Any) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        result = function(*arguments)
        seconds.append(time.perf_counter() - began)
        return result

    return call, seconds


if __name__ == "__main__":
    main()
