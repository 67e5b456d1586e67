"""Cost of recording a step in the engine process. Run by ``make bench-profile``, in a few seconds.

A step of 64 sequences takes more than 5 ms on any machine, so that 50 µs are 1 % of it. The time in the loop delays the
next step; the CPU time includes the thread that encodes and writes.
"""

import tempfile
import time
from types import SimpleNamespace

from bakeoff.reference_engine.core.outputs import StepTimes
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.scheduling.step import Chunk, Step
from bakeoff.reference_engine.serving.core.step_log import StepLog
from benchmarks.bars import Bars

STEPS, ROUNDS = 400, 9


def main() -> None:
    bars = Bars()
    for sequences in (1, 8, 64):
        with tempfile.TemporaryDirectory() as folder:
            engine = SimpleNamespace(on_step=None)
            log = StepLog(folder, engine)  # type: ignore[arg-type]  (StepLog only sets its on_step)
            log.start()
            rounds = [measure(engine, log, sequences) for _ in range(ROUNDS)]
            log.stop()
        in_loop_us, cpu_us = (min(values) for values in zip(*rounds, strict=True))  # the least disturbed rounds
        bars.add(f"step_of_{sequences}_in_loop_us", in_loop_us, "<=", 50)
        bars.add(f"step_of_{sequences}_cpu_us", cpu_us, "<=", 50)
    bars.finish()


def measure(engine: SimpleNamespace, log: StepLog, sequences: int) -> tuple[float, float]:
    """Microseconds of a step: in the loop, and of CPU time, the writer's thread included."""
    requests = [Request(f"chatcmpl-{i:032d}-0", [1] * 10, SamplingParams(max_tokens=5)) for i in range(sequences)]
    for request in requests:
        log.added(request, 1.0)
    step = Step(chunks=tuple(Chunk(request, [], 10, 1, is_sampled=True) for request in requests))
    outputs = [SimpleNamespace(request_id=request.request_id) for request in requests]
    report = SimpleNamespace(
        outputs=outputs, times=StepTimes(1.0, 2.0, 3.0), running=sequences, waiting=0, used_blocks=3
    )
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        engine.on_step(step, report)
    in_loop_s = time.perf_counter() - start_s
    time.sleep(0.2)  # until the thread has written all steps
    return in_loop_s / STEPS * 1e6, (time.process_time() - start_cpu_s) / STEPS * 1e6


if __name__ == "__main__":
    main()
