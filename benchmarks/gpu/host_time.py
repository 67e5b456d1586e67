"""Exposed host time of a step: how long the GPU waits for the next launch. Run by ``make bench-gpu``.

Llama-3.1-8B shapes with random weights, prompts of 128 tokens. torch's profiler records the kernels of some steps:
decodes, alone and with a prompt in the same step. Pauses of more than 5 µs between two kernels count as host time;
shorter ones are gaps within a captured graph. The same number of steps is timed before them, without the profiler.
"""

import itertools
import json
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.offline import load_engine
from benchmarks.bars import Bars
from benchmarks.gpu.offline import LLAMA_8B

GOALS_MS = {1: 0.15, 64: 0.3, 256: 0.8}
MIXED = ((8, 64), (8, 512), (64, 64), (64, 512), (64, 2048))  # decodes, tokens of the prompt that joins every step
PROMPT, WARM_STEPS, STEPS = 128, 20, 40
PAUSE_US = 5.0


def pauses_us(engine: BeamSearchEngine, case: int, joining: int) -> tuple[float, float, float]:
    """Microseconds per step, over ``STEPS`` steps: without a running kernel, in total, and in total without profiler.

    Before each step a request joins with a prompt of `joining` tokens, if any, and asks for one token.
    """

    def advance(number: int) -> None:
        if joining:
            prompt = [1000 * case + number] * joining  # unlike all others, so that no prefix is cached
            engine.add(Request(f"joining-{number}", prompt, SamplingParams(max_tokens=1, temperature=0.0)))
        engine.step()

    numbers = itertools.count()

    def run(steps: int) -> None:
        for _ in range(steps):
            advance(next(numbers))
        torch.cuda.synchronize()

    run(WARM_STEPS)
    began = time.perf_counter()
    run(STEPS)
    unprofiled_us = (time.perf_counter() - began) * 1e6 / STEPS
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        run(STEPS)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in recorded.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    begin, end, idle = spans[0][0], spans[0][1], 0.0
    for start, stop in spans[1:]:
        idle += start - end if start - end > PAUSE_US else 0.0
        end = max(end, stop)
    return idle / STEPS, (end - begin) / STEPS, unprofiled_us


@torch.inference_mode()
def main() -> None:
    bars = Bars()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA_8B), encoding="utf-8")
        engine = load_engine(
            EngineConfig(model=folder, load_format="dummy", dtype="bfloat16", device="cuda", max_model_len=4096)
        )
    for case, (rows, joining) in enumerate([*((rows, 0) for rows in GOALS_MS), *MIXED], start=1):
        params = SamplingParams(max_tokens=WARM_STEPS + 2 * STEPS + 100, temperature=0.0)
        for number in range(rows):
            engine.add(Request(f"{rows}-{number}", [number + 1] * PROMPT, params))
        while engine.step().computed_tokens != rows:
            pass
        idle_us, step_us, unprofiled_us = pauses_us(engine, case, joining)
        print(
            f"{rows} decodes and {joining} tokens of a prompt: {unprofiled_us / 1e3:.2f} ms a step; with the profiler "
            f"{step_us / 1e3:.2f} ms, of which no kernel runs in {idle_us / 1e3:.3f} ms",
            flush=True,
        )
        if not joining:
            bars.add(f"exposed_host_ms_at_{rows}", idle_us / 1e3, "<=", GOALS_MS[rows])
        for number in range(rows):
            engine.cancel(f"{rows}-{number}")
        while engine.has_work:
            engine.step()
    bars.finish()


if __name__ == "__main__":
    main()
