"""An engine process without a model: one token for each request in every step, at a fixed pace.

It waits until `max_num_seqs` requests have arrived. Their steps come in three parts, between which the server sends
nothing: warm-up, the measured steps, and the step that ends all requests. The output repeats the prompt.
"""

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence

from bakeoff.reference_engine.core.outputs import Phases, SampledToken, StepReport, StepTimes, TokenOutput
from bakeoff.reference_engine.core.request import FinishReason, Request
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.serving.core.channel import Channel
from bakeoff.reference_engine.serving.core.wire import Add, Facts, Ready, Start
from benchmarks.engine.sides.front_end_plan import PAUSE_S, WARM_UP_STEPS, Plan

_NUM_SPECIAL = 17  # SmolLM2's special tokens come first; a chat template writes some into the prompt
_PHASES = Phases(0.001, 0.01, 0.1)


def report(outputs: list[TokenOutput], arrived: int) -> StepReport:
    """A step of plain decodes."""
    return StepReport(
        outputs=outputs, duration_s=0.004, times=StepTimes(0.0, 0.002, 0.004), computed_tokens=len(outputs),
        prompt_tokens=0, queue_times_s=[], preemptions=0, swaps=0, looked_up_tokens=0, cached_tokens=0,
        evicted_blocks=0, drafted=[], accepted=[],
        arrived=arrived, running=len(outputs), waiting=0, free_seats=0, used_blocks=1, occupancy=None,
    )  # fmt: skip


def batches(channel: Channel, size: int) -> Iterator[list[Request]]:
    """Groups of `size` requests in order of arrival."""
    requests: list[Request] = []
    while True:
        for command in channel.receive(wait=True):
            if isinstance(command, Add):
                requests += [sent.request() for sent in command.requests]
        if len(requests) >= size:
            yield requests[:size]
            del requests[:size]


def steps(requests: Sequence[Request], num_steps: int, interval_s: float) -> Iterator[list[TokenOutput]]:
    """Yield the tokens of each step when they are due."""
    texts = [[token for token in request.token_ids if token >= _NUM_SPECIAL] for request in requests]
    num_all = WARM_UP_STEPS + num_steps + 1
    due_s = time.perf_counter()
    for number in range(num_all):
        due_s += interval_s
        if number in (WARM_UP_STEPS, WARM_UP_STEPS + num_steps):
            due_s = time.perf_counter() + PAUSE_S
        is_edge = number in (0, num_all - 1)
        outputs = [
            TokenOutput(
                request.request_id,
                SampledToken(text[(index + number) % len(text)]),
                FinishReason.LENGTH if number == num_all - 1 else None,
                gap_s=interval_s if number else None,
                phases=_PHASES if is_edge else None,
            )
            for index, (request, text) in enumerate(zip(requests, texts, strict=True))
        ]
        time.sleep(max(0.0, due_s - time.perf_counter()))
        yield outputs


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    (start,) = channel.receive(wait=True)
    assert isinstance(start, Start)
    config = start.config
    plan = Plan(config.max_num_seqs or 1)
    limits = Limits(1 << 20, 1 << 16, 16, 1 << 20, plan.num_streams)
    channel.send(Ready(Facts(config, limits, frozenset(), "none", "none", os.getpid()), 0))
    arrived = 0
    try:
        for requests in batches(channel, plan.num_streams):
            arrived += len(requests)
            for outputs in steps(requests, plan.num_steps, plan.interval_s):
                channel.send(report(outputs, arrived))
    except ConnectionError:
        channel.close()


if __name__ == "__main__":
    main()
