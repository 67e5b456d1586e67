"""MBU, MFU and bounds of simulated step logs whose bytes and operations are known."""

import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from bakeoff.results.attribution import Attribution, Latency, Part, attribution_of
from bakeoff.results.attribution.bottleneck import Bottleneck, Change, bottleneck, what_if
from bakeoff.results.attribution.roofline import Bound, Ceiling, Roofline, StepPhase, critical_batch, roofline_of
from bakeoff.results.log.step_costs import BatchCost, StepCost, TrialCosts
from bakeoff.results.log.step_log import StepRecord
from bakeoff.results.machine.ceilings import Ceilings
from bakeoff.results.records import TelemetryRecord, Window
from bakeoff.results.report.attribution import ProfiledTrial
from bakeoff.results.report.charts.roofline import Point, roofline
from bakeoff.results.report.sections.attribution import rooflines
from bakeoff.results.text.attribution import bottleneck_sentence, what_if_text
from bakeoff.results.text.roofline import limit_lines
from tests.results.step_simulation import MS, Outcomes, Simulated, simulate, trial_record

BANDWIDTH, PRODUCTS = 40e9, 250e9
WEIGHTS, KV, OPERATIONS = 270e6, 23e3, 270e6
"""Bytes of the weights, bytes of a cached token, operations of a token."""
CPU = Ceilings(
    "cpu", "Some CPU", 1 << 34, BANDWIDTH, 41e9, {"bfloat16": PRODUCTS},
    {"read": (36e9, BANDWIDTH), "bfloat16": (230e9, 270e9)},
)  # fmt: skip
GPU = Ceilings("cuda:0", "Some GPU", 1 << 34, BANDWIDTH, 41e9, {"bfloat16": PRODUCTS})
WHOLE = Window(0, 10**12)
CURVE = [BatchCost(1 << i, WEIGHTS + KV * 200 * (1 << i), OPERATIONS * (1 << i)) for i in range(17)]


def timed(bytes_share: float, flops_share: float, **changes: object) -> Simulated:
    """An engine that reaches these shares of the bandwidth in decode and of the products for each prompt token."""
    defaults: dict[str, object] = {
        "slots": 1, "every_ms": 800.0, "base_ms": 1e3 * WEIGHTS / (bytes_share * BANDWIDTH), "row_ms": 0.0,
        "context_ms": 1e3 * KV / (bytes_share * BANDWIDTH), "prefill_ms": 1e3 * OPERATIONS / (flops_share * PRODUCTS),
    }  # fmt: skip
    return Simulated(**(defaults | changes))  # type: ignore[arg-type]


MEMORY = timed(0.7, 0.9, output_tokens=40)
COMPUTE = timed(0.7, 0.9, prompt_tokens=480, budget_tokens=512, output_tokens=4, every_ms=800.0)
SLOW = timed(0.2, 0.15, prompt_tokens=40, every_ms=1100.0)


def costs_of(outcome: Outcomes, **changes: object) -> TrialCosts:
    steps = [
        StepCost(
            WEIGHTS + KV * sum(chunk.past_tokens + chunk.new_tokens for chunk in event.chunks),
            OPERATIONS * sum(chunk.new_tokens for chunk in event.chunks),
        )
        for event in outcome.events
        if isinstance(event, StepRecord)
    ]
    fields: dict[str, object] = {
        "device": "cpu", "dtype": "bfloat16", "steps": [steps], "context_tokens": 200.0, "decode": CURVE,
    }  # fmt: skip
    return TrialCosts(**(fields | changes))  # type: ignore[arg-type]


def attributed(
    outcome: Outcomes,
    *,
    ceilings: Sequence[Ceilings] = (CPU,),
    telemetry: Sequence[TelemetryRecord] = (),
    window: Window = WHOLE,
    **changes: object,
) -> Attribution:
    return attribution_of(
        trial_record(window=window), outcome.requests, [outcome.events], outcome.front_end,
        costs=costs_of(outcome, **changes), ceilings=ceilings, telemetry=telemetry,
    )  # fmt: skip


def roofline_and_ceiling(attribution: Attribution) -> tuple[Roofline, Ceiling]:
    assert isinstance(attribution.roofline, Roofline)
    assert isinstance(attribution.roofline.ceiling, Ceiling)
    return attribution.roofline, attribution.roofline.ceiling


@pytest.mark.parametrize("setup", [MEMORY, COMPUTE, SLOW], ids=["memory", "compute", "slow"])
def test_mbu_and_mfu_of_each_phase_are_recovered(setup: Simulated) -> None:
    outcome = simulate(setup)
    roof, ceiling = roofline_and_ceiling(attributed(outcome))
    prompt, decodes = setup.prompt_tokens, setup.output_tokens - 1
    tokens = sum(prompt + 1 + i for i in range(decodes))  # in the cache of a request, summed over its decodes
    decode_s, prefill_s = (outcome.truth_ns[part] / 1e9 / 40 for part in (Part.DECODE, Part.PREFILL))
    decode, prefill = roof.phases[StepPhase.DECODE], roof.phases[StepPhase.PREFILL]
    assert decode.mbu(ceiling) == pytest.approx((decodes * WEIGHTS + KV * tokens) / decode_s / BANDWIDTH, rel=0.01)
    assert decode.mfu(ceiling) == pytest.approx(decodes * OPERATIONS / decode_s / PRODUCTS, rel=0.01)
    assert prefill.mfu(ceiling) == pytest.approx(prompt * OPERATIONS / prefill_s / PRODUCTS, rel=0.01)
    assert decode.sequences == 1.0
    assert decode.steps == 40 * decodes


def test_the_limit_behind_the_bottleneck_is_named() -> None:
    memory, compute, slow = (attributed(simulate(setup)) for setup in (MEMORY, COMPUTE, SLOW))
    assert bottleneck_sentence(memory).endswith(". Decode is memory-bound: 70 % of the measured bandwidth")
    assert re.search(r"\. Own prefill is compute-bound: 8\d % of the measured products in bfloat16$",
                     bottleneck_sentence(compute))  # fmt: skip
    assert "Decode is bound by neither limit: 20 % of the measured bandwidth and 3 % of" in bottleneck_sentence(slow)
    assert "fewer free cores" in bottleneck_sentence(slow)
    on_gpu = attributed(simulate(SLOW), ceilings=[GPU], device="cuda")
    assert bottleneck_sentence(on_gpu).endswith("overhead: launches, the step loop, kernels below the limits")
    waiting = attributed(simulate(timed(0.7, 0.9, every_ms=30.0)))
    named = bottleneck(waiting)
    assert isinstance(named, Bottleneck)
    assert named.part is Part.QUEUE
    assert "bound" not in bottleneck_sentence(waiting)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_clean_logs_name_neither_a_limit_nor_a_cap(seed: int) -> None:
    outcome = simulate(Simulated(base_ms=40.0, prefill_ms=5.0, every_ms=300.0), seed)
    telemetry = sampled(outcome, lambda _: 0x1)
    roof, ceiling = roofline_and_ceiling(attributed(outcome, ceilings=[GPU], telemetry=telemetry, device="cuda"))
    assert set(roof.phases) == set(StepPhase)
    for work in roof.phases.values():
        assert work.bound(ceiling) is Bound.NEITHER
        assert work.at_power_cap is False


def sampled(outcome: Outcomes, mask: Callable[[bool], int]) -> list[TelemetryRecord]:
    """Samples of a GPU every 5 ms, whose throttle reasons depend on the running step."""
    steps = [event for event in outcome.events if isinstance(event, StepRecord)]
    starts = np.array([step.planned_ns for step in steps])
    records: list[TelemetryRecord] = []
    for t_ns in range(0, steps[-1].collected_ns, 5 * MS):
        index = int(np.searchsorted(starts, t_ns, side="right")) - 1
        is_decode = index >= 0 and steps[index].chunks[0].new_tokens == 1
        records.append(TelemetryRecord(t_ns, "gpu0", {"throttle_reasons": mask(is_decode)}))
    return records


def test_a_sustained_power_cap_is_named_in_the_phase_that_it_holds_back() -> None:
    outcome = simulate(MEMORY)
    telemetry = sampled(outcome, lambda is_decode: 0x04 if is_decode else 0)
    attribution = attributed(outcome, ceilings=[GPU], telemetry=telemetry, device="cuda")
    roof, _ = roofline_and_ceiling(attribution)
    assert roof.phases[StepPhase.DECODE].at_power_cap is True
    assert roof.phases[StepPhase.PREFILL].at_power_cap is False
    assert "Decode is memory-bound at the power cap: 70 %" in bottleneck_sentence(attribution)
    few = attributed(outcome, ceilings=[GPU], telemetry=telemetry[:9], device="cuda")
    assert roofline_and_ceiling(few)[0].phases[StepPhase.DECODE].at_power_cap is None
    other = sampled(outcome, lambda _: 0x20 | 0x80)  # heat and power brake void the trial by other findings
    hot = attributed(outcome, ceilings=[GPU], telemetry=other, device="cuda")
    assert roofline_and_ceiling(hot)[0].phases[StepPhase.DECODE].at_power_cap is False


def test_a_slow_phase_at_the_power_cap_is_not_blamed_on_overhead() -> None:
    outcome = simulate(SLOW)
    telemetry = sampled(outcome, lambda _: 0x04)
    capped = attributed(outcome, ceilings=[GPU], telemetry=telemetry, device="cuda")
    assert bottleneck_sentence(capped).endswith(
        "Decode is held back by the power cap: 20 % of the measured bandwidth and 3 % of the products in bfloat16"
    )


@pytest.mark.slow
def test_the_power_cap_is_judged_for_each_gpu() -> None:
    outcome = simulate(MEMORY)
    capped = sampled(outcome, lambda _: 0x04)
    free = [TelemetryRecord(r.t_ns, f"gpu{gpu}", {"throttle_reasons": 0}) for gpu in (1, 2) for r in capped]
    for records, expected in (([*capped, *free], True), (free, False)):
        roof, _ = roofline_and_ceiling(attributed(outcome, ceilings=[GPU], telemetry=records, device="cuda"))
        assert roof.phases[StepPhase.DECODE].at_power_cap is expected


@pytest.mark.slow
@pytest.mark.parametrize(("counted_share", "expected"), [(0.0, False), (0.1, False), (0.9, True)])
def test_the_drivers_counter_limits_what_samples_of_the_power_cap_say(counted_share: float, expected: bool) -> None:
    outcome = simulate(MEMORY)
    counted = [
        TelemetryRecord(r.t_ns, r.source, {**r.values, "power_cap_s": counted_share * r.t_ns / 1e9})
        for r in sampled(outcome, lambda _: 0x04)
    ]
    window = Window(0, counted[-1].t_ns)
    (steps,) = attributed(outcome).steps
    costs = costs_of(outcome, device="cuda")
    for replicas in (1, 4):
        of_all = msgspec.structs.replace(costs, steps=costs.steps * replicas)
        roof = roofline_of([steps] * replicas, of_all, [GPU], window, counted)
        assert isinstance(roof, Roofline)
        assert roof.phases[StepPhase.DECODE].at_power_cap is expected


def test_a_step_with_prompt_and_decodes_counts_as_prefill_with_all_its_work() -> None:
    outcome = simulate(Simulated(every_ms=60.0))
    steps = [event for event in outcome.events if isinstance(event, StepRecord)]
    of_prompts = [step for step in steps if any(chunk.new_tokens > 1 for chunk in step.chunks)]
    assert any(len(step.chunks) > 1 for step in of_prompts)
    roof, _ = roofline_and_ceiling(attributed(outcome))
    prefill = roof.phases[StepPhase.PREFILL]
    assert prefill.steps == len(of_prompts)
    tokens = sum(chunk.new_tokens for step in of_prompts for chunk in step.chunks)
    assert prefill.flops == pytest.approx(OPERATIONS * tokens)


def test_only_steps_within_the_window_count() -> None:
    outcome = simulate(MEMORY)
    attribution = attributed(outcome)
    half = Window(0, 8 * 10**9)
    part = roofline_of(attribution.steps, costs_of(outcome), [CPU], half)
    assert isinstance(part, Roofline)
    assert part.phases[StepPhase.DECODE].steps == 10 * 39
    assert roofline_of(attribution.steps, costs_of(outcome), [CPU], Window(0, 0)) == Roofline(
        {}, roofline_and_ceiling(attribution)[1], 200.0, 7
    )


def test_the_critical_batch_is_where_both_limits_meet() -> None:
    _, ceiling = roofline_and_ceiling(attributed(simulate(MEMORY)))
    batch = critical_batch(CURVE, ceiling)
    assert batch == 7  # W / B = n (2.7e8 / F − 200 KV / B) at n = 6.96
    assert critical_batch([BatchCost(n, WEIGHTS + 2e6 * 200 * n, OPERATIONS * n) for n in (1, 65536)], ceiling) is None
    assert critical_batch([BatchCost(1, 1.0, OPERATIONS)], ceiling) == 1


def test_twice_the_bandwidth_agrees_with_a_run_that_has_it() -> None:
    attribution, measured = attributed(simulate(MEMORY)), simulate(
        timed(0.7, 0.9, output_tokens=40, base_ms=MEMORY.base_ms - 0.5e3 * WEIGHTS / BANDWIDTH,
              context_ms=MEMORY.context_ms - 0.5e3 * KV / BANDWIDTH)
    ).attribution()  # fmt: skip
    case = next(case for case in what_if(attribution) if case.part is Part.DECODE)
    assert case.change is Change.TWICE_THE_BANDWIDTH
    assert case.kept == pytest.approx(1 - 0.7 / 2, rel=0.01)
    decode_s = attribution.means[Latency.E2E][Part.DECODE]
    assert case.kept * decode_s == pytest.approx(measured.means[Latency.E2E][Part.DECODE], rel=0.02)
    assert "with twice the bandwidth in decode" in what_if_text(attribution)


def test_bandwidth_beyond_the_other_limit_saves_nothing() -> None:
    roof, ceiling = roofline_and_ceiling(
        attributed(simulate(timed(0.9, 0.5, slots=64, every_ms=1.0, requests=5, budget_tokens=4096)))
    )
    work = roof.phases[StepPhase.DECODE]
    assert 0 < work.mbu(ceiling) / 2 < work.mfu(ceiling) < work.mbu(ceiling)
    assert work.bandwidth_gain(ceiling) == pytest.approx(work.mbu(ceiling) - work.mfu(ceiling))
    faster = msgspec.structs.replace(ceiling, bytes_per_s=work.bytes / work.seconds / 3)
    assert work.mbu(faster) == pytest.approx(3)
    assert work.bandwidth_gain(faster) == 0.5
    slow = attributed(simulate(SLOW))
    assert {case.change for case in what_if(slow) if case.part in {Part.DECODE, Part.PREFILL}} == {Change.TWICE_AS_FAST}


def test_what_is_unknown_says_why_and_what_to_do() -> None:
    outcome = simulate(MEMORY)
    (prefill, decode, limits) = limit_lines(attributed(outcome, ceilings=[]).roofline)
    assert prefill.startswith("prefill: ")
    assert re.match(r"decode: 28\.\d GB/s, 27\.\d GFLOP/s, 0\.98\d operations a byte; 1,560 steps in ", decode)
    assert "run bakeoff lab machine, then bakeoff report" in limits
    assert "MBU 70 %" in limit_lines(attributed(outcome).roofline)[1]
    for reason, attribution in {
        "does not measure products in float16": attributed(outcome, dtype="float16"),
        "limits of this machine were not measured": attributed(outcome, device="cuda"),
        "no model is known": attributed(outcome, missing="no model is known"),
        "not those of the step log": attributed(outcome, steps=[[]]),
        "before costs of steps were stored": outcome.attribution(),
        "recorded no steps": attribution_of(trial_record(), outcome.requests, [], []),
    }.items():
        assert reason in limit_lines(attribution.roofline)[-1]
        assert "bound" not in bottleneck_sentence(attribution)


def test_a_phase_beyond_its_limit_asks_for_another_measurement() -> None:
    outcome = simulate(MEMORY)
    slow = Ceilings("cpu", "busy CPU", 1 << 34, 0.6 * BANDWIDTH, 41e9, {"bfloat16": PRODUCTS})
    assert "while nothing else runs" in limit_lines(attributed(outcome, ceilings=[slow]).roofline)[-1]
    assert not any("nothing else runs" in line for line in limit_lines(attributed(outcome).roofline))


def test_several_devices_have_the_sum_of_their_limits() -> None:
    _, ceiling = roofline_and_ceiling(attributed(simulate(MEMORY), ceilings=[GPU], device="cuda", devices=4))
    assert (ceiling.bytes_per_s, ceiling.flops_per_s) == (4 * BANDWIDTH, 4 * PRODUCTS)
    assert "4 × cuda:0: 160 GB/s, 1.00 TFLOP/s" in limit_lines(attributed(
        simulate(MEMORY), ceilings=[GPU], device="cuda", devices=4).roofline)[-1]  # fmt: skip


def test_the_chart_has_the_roof_its_spread_and_a_point_for_each_phase() -> None:
    roof, ceiling = roofline_and_ceiling(attributed(simulate(MEMORY)))
    points = [Point("sim", 0, "c=4", phase, work) for phase, work in roof.phases.items()]
    svg = roofline("Distance", ceiling, points, "critical batch 7")
    assert svg.count('class="mark"') == 2
    assert svg.count('class="drop"') == 2
    assert 'class="roof-range"' in svg
    for text in (
        "critical batch 7",
        "40.0 GB/s",
        "250 GFLOP/s in bfloat16",
        "sim, prefill",
        "sim, decode",
        ">c=4<",
        "MBU 70 %",
    ):
        assert text in svg
    coordinates = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', svg)]
    assert len(set(coordinates)) == 2
    assert roofline("Distance", ceiling, [], "") == ""


def test_trials_of_one_machine_share_a_chart_and_those_without_limits_have_none() -> None:
    outcome = simulate(MEMORY)
    other = [BatchCost(cost.batch, 2 * WEIGHTS, cost.flops) for cost in CURVE]
    trials = [
        ProfiledTrial(load, position, attribution, "", None, "", [])
        for position, (load, attribution) in enumerate({
            "c=1": attributed(outcome), "c=4": attributed(outcome, decode=other),
            "float16": attributed(outcome, dtype="float16"), "plain": outcome.attribution(),
        }.items())
    ]  # fmt: skip
    (svg,) = rooflines(trials)
    assert svg.count('class="mark"') == 4
    assert "critical batch 7 to 13" in svg
    (none,) = rooflines([ProfiledTrial("c", 0, attributed(outcome, decode=[]), "", None, "", [])])
    assert "no batch of decodes gets here" in none
    assert rooflines(trials[2:]) == []


def test_limits_that_only_print_alike_have_a_chart_each() -> None:
    outcome = simulate(MEMORY)
    alike = msgspec.structs.replace(CPU, read_bytes_per_s=1.0001 * BANDWIDTH)
    trials = [
        ProfiledTrial("c=1", 0, attributed(outcome, ceilings=[device]), "", None, "", []) for device in (CPU, alike)
    ]
    assert len(rooflines(trials)) == 2


def test_the_number_of_threads_behind_a_limit_is_printed() -> None:
    outcome = simulate(MEMORY)
    for threads, text in ((1, "limits of cpu (1 thread): 40.0 GB/s"), (2, "cpu (2 threads): "), (None, "of cpu: ")):
        device = msgspec.structs.replace(CPU, threads=threads)
        assert text in limit_lines(attributed(outcome, ceilings=[device]).roofline)[-1]
