"""Interference: the fitted duration of decodes alone, and what a step with prompts takes beyond it."""

import re

import msgspec
import numpy as np
import pytest

from bakeoff.results.attribution import Latency, Part
from bakeoff.results.attribution.decode_cost import DecodeCost, fit
from bakeoff.results.attribution.difference import differences
from bakeoff.results.log.step_log import ChunkRecord, RequestQueued, StepRecord
from bakeoff.results.text.attribution import cost_line, part_rows
from tests.results.step_simulation import Outcomes, Simulated, simulate


def test_noise_is_no_interference() -> None:
    """Prompts cost nothing here. Clipped step by step, 10 % of noise made 1.8 % of the E2E interference."""
    shares: list[float] = []
    for seed in range(1, 5):
        attribution = simulate(Simulated(prefill_ms=0.0, noise=0.1, every_ms=30.0), seed).attribution()
        shares.append(attribution.shares(Latency.E2E)[Part.INTERFERENCE])
        for request in attribution.requests:
            assert min(request.parts[Latency.E2E].values()) >= -1e-9
            assert request.parts[Latency.E2E][Part.UNATTRIBUTED] == pytest.approx(0.0, abs=1e-9)
    assert np.mean(shares) < 0.008


def test_steps_faster_than_expected_cancel_slower_ones() -> None:
    steps = simulate(Simulated(requests=1, output_tokens=4)).attribution().steps[0]
    own = steps.requests["answer-0-0"]
    decode_ns = float((steps.end_ns - steps.start_ns)[own.decodes].sum())
    for excess_ns, interference_ns in (([9.0, -4.0, 1.0], 6.0), ([2.0, -9.0, 1.0], 0.0)):
        in_all_ns = np.zeros(len(steps.records))
        in_all_ns[own.decodes] = excess_ns
        parts_ns = msgspec.structs.replace(steps, excess_ns=in_all_ns).computing(own, own.output_steps[-1])
        assert parts_ns[Part.INTERFERENCE] == interference_ns
        assert parts_ns[Part.DECODE] == pytest.approx(decode_ns - interference_ns, abs=1e-6)


def test_a_step_that_the_machine_held_up_is_no_interference() -> None:
    calm, held_up = simulate(Simulated()), simulate(Simulated(stalls=(30,)))
    costs = [outcome.attribution().cost for outcome in (calm, held_up)]
    assert isinstance(costs[0], DecodeCost)
    assert isinstance(costs[1], DecodeCost)
    assert costs[1].base_ns == pytest.approx(costs[0].base_ns, rel=0.1)


def test_the_cost_of_decodes_is_found_among_noise_and_outliers() -> None:
    rng = np.random.default_rng(1)
    rows, context = rng.integers(1, 32, 400), rng.integers(100, 5000, 400)
    duration = (6e6 + 2e5 * rows + 800 * context) * rng.normal(1, 0.02, 400)
    duration[::50] += 1e9
    cost = fit(rows, context, duration)
    assert isinstance(cost, DecodeCost)
    assert cost.base_ns == pytest.approx(6e6, rel=0.05)
    assert cost.row_ns == pytest.approx(2e5, rel=0.05)
    assert cost.context_ns == pytest.approx(800, rel=0.05)
    assert cost.expected_ns(np.array([2]), np.array([10]))[0] == pytest.approx(6.4e6, rel=0.05)


def test_the_cost_of_a_step_is_given_by_computed_token_with_drafts_or_without() -> None:
    drafted = [
        RequestQueued(0, "a-0", 4, 0, 0),
        *(
            StepRecord(i, 10 * i, 10 * i, 10 * i + 5 + tokens, [ChunkRecord(0, 4, tokens, tokens - 1, 1)], [], 1, 0, 1)
            for i, tokens in enumerate([1, 4, 2, 3] * 3)
        ),
    ]  # fmt: skip
    attribution = Outcomes([], drafted, [], {}).attribution()
    assert isinstance(attribution.cost, DecodeCost)
    assert attribution.cost.row_ns == pytest.approx(1.0)
    assert " a computed token (half of 12 steps" in cost_line(attribution)


def test_no_cost_is_below_zero_and_too_few_steps_give_none() -> None:
    rows, context = np.array([1, 2, 3, 4] * 4), np.array([400, 300, 200, 100] * 4)
    cost = fit(rows, context, 5e6 - 1e5 * rows)
    assert isinstance(cost, DecodeCost)
    assert min(cost.base_ns, cost.row_ns, cost.context_ns) >= 0
    assert fit(rows[:7], context[:7], np.full(7, 5e6)) == "only 7 steps decoded without a prompt, and 8 are needed"
    crowded = simulate(Simulated(requests=3, output_tokens=2, prompt_tokens=500, budget_tokens=64)).attribution()
    assert "unknown and counted as decode" in cost_line(crowded)
    assert set(crowded.absent) == {Part.INTERFERENCE}
    alone = simulate(Simulated(requests=1, output_tokens=3)).attribution()
    assert alone.means[Latency.E2E][Part.INTERFERENCE] == 0.0, "no prompt ran beside a decode"
    assert cost_line(alone).startswith("a step of decodes alone: unknown, because only 2 steps ")


UNSTEADY = Simulated(noise=0.6, every_ms=30.0)


def test_interference_is_unknown_where_steps_lie_far_from_the_fit() -> None:
    outcome = simulate(UNSTEADY)
    attribution = outcome.attribution()
    assert re.fullmatch(
        r"half of the \d+ steps of decodes alone deviate from the fit by \d\d % of the median duration or more; "
        "the limit is 25 %",
        attribution.absent[Part.INTERFERENCE],
    )
    assert cost_line(attribution).startswith("interference: unknown and counted as decode, because half of the ")
    for request in attribution.requests:
        for parts in request.parts.values():
            assert Part.INTERFERENCE not in parts
            assert parts[Part.UNATTRIBUTED] == pytest.approx(0.0, abs=1e-9)
    truth_ms = outcome.truth_ms(Part.DECODE) + outcome.truth_ms(Part.INTERFERENCE)
    assert 1e3 * attribution.means[Latency.E2E][Part.DECODE] == pytest.approx(truth_ms)
    (row,) = [row for row in part_rows(attribution) if row[0] is Part.INTERFERENCE]
    assert row[1:] == ("interference (unknown: too few steady steps)", ["–"] * 4)


def test_a_side_without_interference_is_compared_by_their_sum() -> None:
    steady, unsteady = simulate(Simulated()).attribution(), simulate(UNSTEADY).attribution()
    (difference,) = differences([steady], [unsteady])
    assert difference.merged
    assert Part.INTERFERENCE not in difference.before_s[Latency.E2E]
    expected_s = (steady.mean_s(Latency.E2E), unsteady.mean_s(Latency.E2E))
    assert difference.total_s(Latency.E2E) == pytest.approx(expected_s)
    (alike,) = differences([unsteady], [unsteady])
    assert not alike.merged
