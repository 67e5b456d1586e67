"""Attribution of latency, against a simulated engine whose true phases are known."""

import io

import msgspec
import numpy as np
import pytest
from rich.console import Console

from bakeoff.results.attribution import PARTS, Latency, Part
from bakeoff.results.attribution.bottleneck import Bottleneck, bottleneck, what_if
from bakeoff.results.attribution.catalogue import STEP_PARTS
from bakeoff.results.attribution.difference import differences, side
from bakeoff.results.attribution.energy import EnergyPhase, PhaseEnergy, phase_energy
from bakeoff.results.attribution.steps import steps_of
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.log.step_log import ChunkRecord, RequestQueued, StepRecord
from bakeoff.results.records import Load, TelemetryRecord, Window
from bakeoff.results.report.difference_table import print_differences
from bakeoff.results.text.attribution import (
    bottleneck_sentence,
    clock_line,
    coverage_line,
    difference_sentence,
    energy_line,
    part_rows,
    what_if_text,
)
from tests.results.step_simulation import MS, Outcomes, Simulated, simulate

PLANTED = {
    "nothing": (Simulated(), Part.DECODE),
    "slow client": (Simulated(client_ms=400.0), Part.CLIENT),
    "slow network": (Simulated(network_ms=250.0), Part.NETWORK_IN),
    "slow tokenizer": (Simulated(front_end_ms=400.0), Part.FRONT_END),
    "few slots": (Simulated(slots=2, every_ms=50.0), Part.QUEUE),
    "long prompts of others": (
        Simulated(long_prompt_tokens=1500, prompt_tokens=20, budget_tokens=512, prefill_ms=0.2, every_ms=150.0),
        Part.INTERFERENCE,
    ),
    "slow step loop": (Simulated(gap_ms=25.0, every_ms=200.0), Part.BUBBLES),
    "slow launches": (Simulated(late_ms=400.0), Part.COLLECT),
    "slow detokenizer": (Simulated(detokenise_ms=500.0), Part.DETOKENISE),
    "memory-bound decode": (Simulated(context_ms=0.02, every_ms=200.0), Part.DECODE),
    "compute-bound prefill": (Simulated(prefill_ms=2.0, output_tokens=4, every_ms=450.0), Part.PREFILL),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_delay_is_recovered_and_named(name: str, seed: int) -> None:
    setup, planted = PLANTED[name]
    outcome = simulate(setup, seed)
    attribution = outcome.attribution()
    means = attribution.means[Latency.E2E]
    for part in STEP_PARTS:
        if part is not Part.UNATTRIBUTED:
            truth_ms = outcome.truth_ns.get(part, 0.0) / MS / 40
            tolerance_ms = 0.01 * attribution.mean_s(Latency.E2E) * 1e3
            assert means[part] * 1e3 == pytest.approx(truth_ms, rel=0.1, abs=tolerance_ms), part
    named = bottleneck(attribution)
    assert isinstance(named, Bottleneck)
    assert named.part is planted
    assert bottleneck_sentence(attribution).startswith(f"Bottleneck: {PARTS[planted].title}, ")


@pytest.mark.parametrize("name", PLANTED)
def test_parts_sum_to_each_latency(name: str) -> None:
    outcome = simulate(PLANTED[name][0])
    attribution = outcome.attribution()
    assert attribution.attributed_share == 1.0
    for request, record in zip(attribution.requests, outcome.requests, strict=True):
        for latency, last in ((Latency.E2E, -1), (Latency.TTFT, 0)):
            whole_s = (record.chunk_ns[last] - record.planned_ns) / 1e9
            assert request.total_s(latency) == pytest.approx(whole_s, rel=1e-9)
            assert request.parts[latency][Part.UNATTRIBUTED] == pytest.approx(0.0, abs=1e-9)


def test_time_out_of_the_running_batch_is_stall_time() -> None:
    outcome = simulate(Simulated(preempts=(40, 60, 80)))
    attribution = outcome.attribution()
    assert outcome.truth_ms(Part.STALL) > 5
    assert attribution.means[Latency.E2E][Part.STALL] * 1e3 == pytest.approx(outcome.truth_ms(Part.STALL), rel=0.01)


def test_what_if_takes_the_part_away() -> None:
    attribution = simulate(PLANTED["few slots"][0]).attribution()
    first, *_ = what_if(attribution)
    assert (first.part, first.kept) == (Part.QUEUE, 0.0)
    assert first.latency_s == pytest.approx(
        attribution.mean_s(Latency.E2E) - attribution.means[Latency.E2E][Part.QUEUE]
    )
    decode = next(case for case in what_if(attribution) if case.part is Part.DECODE)
    assert decode.share == pytest.approx(attribution.shares(Latency.E2E)[Part.DECODE] / 2)
    assert "without queue" in what_if_text(attribution)


def cut(outcome: Outcomes, count: int) -> Outcomes:
    """The same, but the server did not record the first ``count`` requests."""
    unknown = [msgspec.structs.replace(request, answer_id=None) for request in outcome.requests[:count]]
    return Outcomes([*unknown, *outcome.requests[count:]], outcome.events, outcome.front_end, {})


def test_what_the_server_did_not_record_stays_unattributed() -> None:
    attribution = cut(simulate(Simulated()), 1).attribution()
    parts = attribution.requests[0].parts[Latency.E2E]
    assert parts[Part.CLIENT] == pytest.approx(0.1e-3)
    assert parts[Part.UNATTRIBUTED] == pytest.approx(attribution.requests[0].total_s(Latency.E2E) - 0.1e-3)
    assert attribution.attributed_share == pytest.approx(39 / 40)
    assert coverage_line(attribution) == (
        "unattributed: at most 2 % of the E2E of 97.5 % of 40 requests; left out of the means, because the server did "
        "not record them: 1"
    )


def test_requests_that_the_server_did_not_record_change_neither_bottleneck_nor_savings() -> None:
    outcome = simulate(PLANTED["few slots"][0])
    whole, partly = Outcomes(outcome.requests[20:], outcome.events, outcome.front_end, {}), cut(outcome, 20)
    assert bottleneck(partly.attribution()) == bottleneck(whole.attribution())
    assert what_if(partly.attribution()) == what_if(whole.attribution())
    assert partly.attribution().means[Latency.E2E][Part.UNATTRIBUTED] == pytest.approx(0.0, abs=1e-9)


def test_no_bottleneck_is_named_where_the_server_recorded_less_than_half() -> None:
    attribution = cut(simulate(Simulated()), 21).attribution()
    assert bottleneck(attribution) == "the server recorded only 19 of 40 requests"
    assert bottleneck_sentence(attribution) == "nothing to attribute: the server recorded only 19 of 40 requests"
    assert what_if(attribution) == []
    assert part_rows(attribution) == []
    with pytest.raises(NoEvidence):
        differences([attribution], [attribution])


def test_without_any_record_the_sentence_says_so() -> None:
    outcome = Outcomes([], [], [], {})
    assert isinstance(bottleneck(outcome.attribution()), str)
    assert what_if(outcome.attribution()) == []
    assert bottleneck_sentence(outcome.attribution()) == "nothing to attribute: no request of the window succeeded"


def test_clocks_are_checked_by_stamps_whose_order_is_certain() -> None:
    outcome = simulate(Simulated())
    clock = outcome.attribution().clock
    assert clock is not None
    assert (clock.residual_ns, clock.least_ns, clock.most_ns) == (0, -50_000, 50_000)
    assert "all 240 pairs of stamps are in order" in clock_line(clock)
    ahead = [  # the server's clock lags by 3 ms, so the server receives requests before the client has sent them
        msgspec.structs.replace(http, received_ns=http.received_ns - 3 * MS) for http in outcome.front_end
    ]  # fmt: skip
    off = Outcomes(outcome.requests, outcome.events, ahead, {}).attribution().clock
    assert off is not None
    assert off.residual_ns == 3 * MS - 50_000
    assert "contradict each other by up to 2,950 µs" in clock_line(off)


LONG = {"long_prompt_tokens": 1200, "prompt_tokens": 20, "budget_tokens": 256, "every_ms": 250.0, "output_tokens": 60}
CHANGED = {
    "client": ({"client_ms": 40.0}, {"client_ms": 0.0}, Part.CLIENT, 0.0),
    "front end": ({"front_end_ms": 40.0}, {"front_end_ms": 0.0}, Part.FRONT_END, 0.0),
    "gaps": ({"gap_ms": 5.0}, {"gap_ms": 0.0}, Part.BUBBLES, 0.0),
    "detokeniser": ({"detokenise_ms": 60.0}, {"detokenise_ms": 0.0}, Part.DETOKENISE, 0.0),
    "decode": (
        {"base_ms": 6.0, "row_ms": 0.3, "context_ms": 0.01}, {"base_ms": 3.0, "row_ms": 0.15, "context_ms": 0.005},
        Part.DECODE, 0.5,
    ),
    "interference": (LONG | {"prefill_ms": 0.1}, LONG | {"prefill_ms": 0.0}, Part.INTERFERENCE, 0.0),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGED)
def test_what_if_agrees_with_a_run_in_which_the_part_was_really_changed(name: str) -> None:
    slow, fast, part, kept = CHANGED[name]
    before = simulate(Simulated(**{"every_ms": 400.0, **slow}))
    after = simulate(Simulated(**{"every_ms": 400.0, **fast}))
    # for interference, only the requests that are the same in both
    short = [request.index for request in before.requests if name != "interference" or request.index % 3]
    slow_run, fast_run = before.attribution(), after.attribution()
    predicted = np.mean([
        request.total_s(Latency.E2E) - (1 - kept) * request.parts[Latency.E2E][part]
        for request in slow_run.requests if request.index in short
    ])  # fmt: skip
    measured = np.mean([request.total_s(Latency.E2E) for request in fast_run.requests if request.index in short])
    assert predicted == pytest.approx(measured, rel=0.1)
    ratio = (
        np.mean([request.total_s(Latency.E2E) for request in slow_run.requests if request.index in short]) / measured
    )
    assert ratio > 1.1  # the change was large enough to predict


def test_a_change_is_traced_to_its_part() -> None:
    before, after = simulate(Simulated()).attribution(), simulate(Simulated(gap_ms=8.0)).attribution()
    (difference,) = differences([before], [after])
    first, *_ = difference.changes_s(Latency.E2E)
    assert first is Part.BUBBLES
    assert sum(difference.changes_s(Latency.E2E).values()) == pytest.approx(
        after.mean_s(Latency.E2E) - before.mean_s(Latency.E2E)
    )
    assert "gaps between steps +" in difference_sentence(difference)
    console = Console(width=100, record=True, file=io.StringIO())
    print_differences([difference], console)
    table = console.export_text()
    assert "gaps between steps" in table
    (decode,) = [line.split() for line in table.splitlines() if line.startswith("decode ")]
    assert decode[-3:] == ["–"] * 3, "before the first token nothing is decoded, as in the table of each run"
    same = difference_sentence(differences([before], [before])[0])
    assert same.endswith("(+0 ms, +0 %)")


def test_sides_without_a_profile_in_common_are_refused() -> None:
    first = simulate(Simulated(requests=3)).attribution()
    other = simulate(Simulated(requests=3)).attribution(engine="b", load=Load(concurrency=9))
    unknown = msgspec.structs.replace(first, requests=[])
    for side_b in (other, unknown):
        with pytest.raises(NoEvidence, match="no profiled trial at the same load"):
            differences([first], [side_b])
    assert side([first, other], "b", "runs/R") == [other]
    assert side([first], "", "runs/R") == [first]
    with pytest.raises(NotComparable, match="runs/R@sim, runs/R@b"):
        side([first, other], "", "runs/R")
    for attributions, engine in (([], ""), ([first], "b")):
        with pytest.raises(NoEvidence, match="make one with bakeoff profile"):
            side(attributions, engine, "runs/R")


def gpu(outcome: Outcomes, watts: dict[str, float], gpus: int = 1) -> list[TelemetryRecord]:
    """Readings, ten times a second, of the energy counter of a GPU that draws these powers in the true phases."""
    steps = [event for event in outcome.events if isinstance(event, StepRecord)]
    timed_steps = outcome.attribution().steps[0]
    end_ns, readings = steps[-1].collected_ns, list[TelemetryRecord]()
    times = np.arange(0, end_ns, 1_000_000)
    power = np.full(len(times), watts["idle"])
    for decodes, start, end, excess in zip(
        timed_steps.decode_tokens, timed_steps.start_ns, timed_steps.end_ns, timed_steps.excess_ns, strict=True
    ):
        split = start + max(0.0, excess) if decodes else end
        power[(times >= start) & (times < split)] = watts["prefill"]
        power[(times >= split) & (times < end)] = watts["decode"]
    joules = np.concatenate([[0.0], np.cumsum(power) * 1e-3])
    for t_ns in range(0, end_ns, 100 * MS):
        for number in range(gpus):
            values: dict[str, float | int | str | None] = {"energy_j": float(joules[t_ns // 1_000_000]) / gpus}
            readings.append(TelemetryRecord(t_ns=t_ns, source=f"gpu{number}", values=values))
    return readings


MIXED = Simulated(
    requests=60, every_ms=170.0, prompt_tokens=20, long_prompt_tokens=900, prefill_ms=0.1, output_tokens=12
)


@pytest.mark.parametrize("gpus", [1, 2])
def test_each_phase_gets_the_energy_that_it_draws(gpus: int) -> None:
    outcome = simulate(MIXED)
    telemetry = gpu(outcome, {"prefill": 650.0, "decode": 400.0, "idle": 100.0}, gpus)
    steps = outcome.attribution().steps[0]
    energy = phase_energy(steps, telemetry, Window(0, 10**12))
    assert isinstance(energy, PhaseEnergy)
    assert energy.watts[EnergyPhase.PREFILL] == pytest.approx(650, rel=0.05)
    assert energy.watts[EnergyPhase.DECODE] == pytest.approx(400, rel=0.05)
    assert energy.watts[EnergyPhase.IDLE] == pytest.approx(100, rel=0.05)
    whole = [record.values["energy_j"] for record in telemetry if record.source == "gpu0"]
    assert sum(energy.joules.values()) == pytest.approx(gpus * (float(whole[-1] or 0) - float(whole[1] or 0)), rel=0.02)
    assert energy.output_tokens == pytest.approx(60 * 11, rel=0.05)
    drafted = msgspec.structs.replace(steps, decode_tokens=5 * steps.decode_tokens)
    with_drafts = phase_energy(drafted, telemetry, Window(0, 10**12))
    assert isinstance(with_drafts, PhaseEnergy)
    assert with_drafts.output_tokens == energy.output_tokens
    assert "decode 4" in energy_line(energy)
    assert "J an output token" in energy_line(energy)


def test_energy_by_phase_says_why_it_is_unknown() -> None:
    outcome = simulate(MIXED)
    steps, watts = outcome.attribution().steps[0], {"prefill": 650.0, "decode": 400.0, "idle": 100.0}
    assert phase_energy(steps, [], Window(0, 10**12)) is None
    assert energy_line(None) == ""
    short = phase_energy(steps, gpu(outcome, watts), Window(0, 10**9))
    assert "31 are needed" in str(short)
    assert energy_line(short).startswith("energy by phase: unknown, because the energy counter has")
    starts = np.arange(0, 10**10, 100 * MS)
    even = msgspec.structs.replace(  # each interval has the same share of prefill, decode and idle
        steps, start_ns=starts, end_ns=starts + 90 * MS, excess_ns=np.full(100, 40.0 * MS),
        decode_tokens=np.ones(100, dtype=np.int64), prompt_tokens=np.ones(100, dtype=np.int64),
    )  # fmt: skip
    telemetry = [TelemetryRecord(t_ns=t * 100 * MS, source="gpu0", values={"energy_j": 40.0 * t}) for t in range(100)]
    reason = phase_energy(even, telemetry, Window(0, 10**12))
    assert "too evenly" in str(reason)
    unsteady = simulate(Simulated(noise=0.6, every_ms=30.0))
    reason = phase_energy(unsteady.attribution().steps[0], gpu(unsteady, watts), Window(0, 10**12))
    assert str(reason).startswith("steps with decodes and prompts cannot be divided: half of the ")


def test_steps_that_overlap_share_no_time() -> None:
    """As on a GPU: a step is planned and launched while the one before still runs."""
    chunk = [ChunkRecord(0, 4, 1, 0, 1)]
    steps = steps_of([
        RequestQueued(0, "a-0", 4, 0, 0),
        StepRecord(0, 0, 2, 10, [ChunkRecord(0, 0, 4, 0, 1)], [], 1, 0, 1),
        StepRecord(1, 3, 5, 20, chunk, [], 1, 0, 1),
        StepRecord(2, 12, 14, 30, chunk, [], 1, 0, 1),
        StepRecord(3, 34, 36, 40, chunk, [], 1, 0, 1),
    ])  # fmt: skip
    assert steps.start_ns.tolist() == [0, 10, 20, 34]
    assert steps.gap_ns.tolist() == [0, 0, 0, 4]
    assert steps.computing(steps.requests["a-0"], 3) == {
        Part.PREFILL: 10, Part.STALL: 0, Part.DECODE: 26, Part.INTERFERENCE: 0, Part.BUBBLES: 4,
    }  # fmt: skip
