from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Any

import msgspec
import pytest

from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.finding_codes import Cause, FindingCode
from bakeoff.results.findings import Finding, Severity, invalid, note, warning
from bakeoff.results.metrics.machine import HEAT_OR_BRAKE
from bakeoff.results.records import (
    Cache,
    ClientError,
    Load,
    Outcome,
    Phase,
    RampRecord,
    RequestRecord,
    TelemetryRecord,
    TokenClaim,
    TokenSource,
    TrafficRecord,
    Verdict,
    Window,
    WindowKind,
)
from bakeoff.results.text.findings import sentence
from tests.harness.samples import request

S = 1_000_000_000
GOOD = [request(i) for i in range(10)]


def evidence(requests: list[Any] = GOOD, **changes: Any) -> Evidence:
    fields: dict[str, Any] = {
        "requests": requests,
        "telemetry": [],
        "load": Load(concurrency=1),
        "window": Window(0, 10 * S),
        "max_failure_share": 0.01,
    }
    return Evidence(**{**fields, **changes})


def findings_of(*arguments: Any, **changes: Any) -> list[Finding]:
    verdict, findings = judge(evidence(*arguments, **changes))
    assert (verdict is Verdict.INVALID) == any(finding.severity is Severity.INVALID for finding in findings)
    return findings


def invalidating(*arguments: Any, **changes: Any) -> list[Finding]:
    return [finding for finding in findings_of(*arguments, **changes) if finding.severity is Severity.INVALID]


def codes(findings: list[Finding]) -> list[FindingCode]:
    return [finding.code for finding in findings]


def test_a_good_trial_is_valid():
    assert findings_of() == []


def test_a_dead_engine_comes_first():
    first, *_ = findings_of(engine_death="signal 9", window=Window(0, 0))
    assert first == invalid(FindingCode.ENGINE_DIED, detail="signal 9")


def test_too_many_failures_name_the_most_frequent_outcome_and_its_first_error():
    outcomes = [Outcome.REFUSED, Outcome.TIMEOUT, Outcome.TIMEOUT]
    bad = [*GOOD, *(request(10 + i, outcome=outcome, error=f"error {i}") for i, outcome in enumerate(outcomes))]
    assert findings_of(bad, window=Window(0, 13 * S)) == [
        invalid(
            FindingCode.FAILED_REQUESTS, failed_requests=3, measured_requests=13, outcome="timeout",
            outcome_requests=2, error="error 1",
        )
    ]  # fmt: skip
    assert findings_of(bad, window=Window(0, 13 * S), max_failure_share=0.25) == []


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (401, FindingCode.NOT_AUTHORISED, "api_key_env"),
        (403, FindingCode.NOT_AUTHORISED, "api_key_env"),
        (404, FindingCode.NOT_FOUND, "model's name"),
        (400, FindingCode.REQUEST_REFUSED, "--extra-body"),
        (422, FindingCode.REQUEST_REFUSED, "--extra-body"),
        (402, FindingCode.NOT_AUTHORISED, "api_key_env"),
        (405, FindingCode.NOT_FOUND, "model's name"),
        (413, FindingCode.REQUEST_REFUSED, "--extra-body"),
        (429, FindingCode.RATE_LIMITED, "raise the limit"),
        (500, FindingCode.FAILED_REQUESTS, "lower the load"),
    ],
)
def test_a_refusal_gets_its_own_advice(status: int, code: FindingCode, advice: str):
    (finding,) = findings_of([request(0, outcome=Outcome.HTTP_ERROR, status=status), *GOOD[1:]])
    assert finding.code is code
    advices = ("api_key_env", "model's name", "lower the load", "--extra-body", "raise the limit")
    assert [text for text in advices if text in sentence(finding)] == [advice]


def test_only_failures_planned_in_the_window_count():
    for outcome in (Outcome.TIMEOUT, Outcome.EMPTY):
        outside = [request(i, outcome=outcome, phase=phase) for i, phase in ((-1, Phase.RAMP), (10, Phase.TAIL))]
        assert [finding.code for finding in findings_of([*GOOD, *outside])] == [FindingCode.RAMP_FAILURES]
        assert findings_of([*GOOD, *outside[1:]]) == []
        assert codes(findings_of([*GOOD[1:], request(0, outcome=outcome)])) == [FindingCode.FAILED_REQUESTS]


def test_requests_cancelled_by_the_client_are_no_failures():
    assert findings_of([*GOOD[1:], request(0, outcome=Outcome.CANCELLED)]) == []


def ramp(window_s: float, turnover_s: float | None = None) -> RampRecord:
    return RampRecord(complete=True, turnover_s=turnover_s, window_s=window_s)


def test_a_window_shorter_than_needed_is_invalid():
    """It is shorter than three turnovers, or needs more than ``max_window_s``."""
    for needed_s, turnover_s, limit_s in ((12.0, 4.0, 600.0), (30.0, 1.0, 10.0)):
        assert findings_of(ramp=ramp(needed_s, turnover_s), max_window_s=limit_s) == [
            invalid(FindingCode.WINDOW_TOO_SHORT, window_s=10.0, needed_window_s=needed_s)
        ]
    assert findings_of(ramp=ramp(10.0, 3.0), max_window_s=10.0) == []


def test_a_window_in_which_no_request_began_is_invalid():
    """Its metrics would be absent, and no failure would be counted."""
    window = Window(900_000_000_000, 910_000_000_000)
    assert invalidating(window=window) == [invalid(FindingCode.WINDOW_EMPTY, window_s=10.0)]


def test_a_trial_without_a_window_is_invalid():
    assert findings_of(window=Window(0, 0)) == [
        invalid(FindingCode.WINDOW_TOO_SHORT, window_s=0.0, needed_window_s=0.0)
    ]


def test_a_window_for_which_sessions_in_progress_were_not_written_is_invalid():
    late = msgspec.structs.replace(ramp(10.0, 3.0), unwritten_s=2.5)
    assert findings_of(ramp=late) == [invalid(FindingCode.SESSIONS_CUT, unwritten_s=2.5)]


def test_a_window_shortened_by_its_plan_is_a_warning():
    assert findings_of(ramp=ramp(30.0, 3.0), max_window_s=600.0) == [
        warning(FindingCode.PLAN_ENDED_EARLY, planned_s=10.0, needed_window_s=30.0)
    ]


def test_a_window_of_early_turns_is_invalid():
    """The plan's mean position is 2.0, counted from 0."""
    planned = traffic(mean_turn=2.0)
    for turns, refused in (([2] * 20, False), ([1] * 20, True), ([1] * 19, False), ([0, 1, 5] * 7, False)):
        requests = [request(i, turn=turn) for i, turn in enumerate(turns)]
        findings = findings_of(requests, traffic=planned, window=Window(0, 21 * S))
        assert findings == ([invalid(FindingCode.TURN_MIX, window_turn=2.0, workload_turn=3.0)] if refused else [])


def test_a_closed_loop_with_other_lengths_than_its_workload_is_invalid():
    """The rest of an answer that was in progress does not count, and lengths that vary may be off by chance."""
    short = [request(i, requested_output_tokens=10) for i in range(20)]
    rests = [request(i, requested_output_tokens=1, part=0.1, phase=Phase.RAMP) for i in range(20, 30)]
    planned = traffic(mean_output_tokens=16.0, output_tokens_sd=1.0)
    window = Window(0, 30 * S)
    assert FindingCode.LENGTH_MIX in codes(invalidating([*short, *rests], traffic=planned, window=window))
    assert codes(invalidating(short, traffic=planned, window=window, load=POISSON)) == []
    varied = traffic(mean_output_tokens=16.0, output_tokens_sd=8.0)
    assert codes(invalidating(short, traffic=varied, window=window)) == []
    planned = traffic(mean_output_tokens=11.0, output_tokens_sd=0.0)
    assert codes(invalidating([*short, *rests], traffic=planned, window=window)) == []


def test_varying_loads_are_not_judged_by_steadiness():
    makespan = Window(0, 10 * S, WindowKind.MAKESPAN)
    growing = [request(i, i / 10, ended_ns=20 * S) for i in range(100)]
    for load in (Load(arrival="workload"), Load(rate_per_s=9, arrival="diurnal")):
        assert findings_of(growing, load=load, window=makespan, traffic=traffic(mean_turn=9.0)) == []


def test_a_client_that_sends_late_invalidates_the_trial():
    late = [request(i, sent_ns=i * S + 50_000_000) for i in range(10)]
    assert findings_of(late) == [invalid(FindingCode.CLIENT_LATE, late_share=0.1, send_lag_s=0.05)]


def test_lateness_far_below_the_latency_is_tolerated():
    late = [request(i, sent_ns=i * S + 50_000_000, chunk_ns=[i * S + 6 * S, i * S + 7 * S]) for i in range(10)]
    assert findings_of(late) == []


def test_an_open_loop_at_the_wrong_rate_is_invalid():
    hurried = [request(i, sent_ns=round(0.9 * i * S)) for i in range(700)]
    (finding,) = invalidating(hurried, load=Load(rate_per_s=1, arrival="poisson"), window=Window(0, 700 * S))
    assert finding.code is FindingCode.CLIENT_OFF_RATE
    assert finding.parameters["rate_share"] == pytest.approx(1 / 0.9)


POISSON = Load(rate_per_s=10, arrival="poisson")


def test_an_open_loop_whose_requests_queue_ever_longer_is_saturated():
    """One server that takes 0.2 s a request, where 10 arrive a second: the i-th waits until all before it are done."""
    times = [(i / 10, i / 5) for i in range(100)]
    queued = [
        request(i, planned, chunk_ns=[int((start + 0.1) * S), int((start + 0.2) * S)], ended_ns=int((start + 0.2) * S))
        for i, (planned, start) in enumerate(times)
    ]
    (finding,) = invalidating(queued, load=POISSON)
    assert finding.code is FindingCode.SATURATED
    assert finding.parameters["last_in_flight"] == pytest.approx(48, abs=2)
    assert codes(invalidating(queued, load=Load(concurrency=100))) == []


def test_a_queue_under_max_in_flight_is_not_the_engines():
    """Two slots of a cap, each busy for 0.4 s a request, where 10 arrive a second: the engine answers at once."""
    times = [(i / 10, max(i / 10, i / 5)) for i in range(100)]
    held = [
        request(i, planned, chunk_ns=[int((start + 0.2) * S), int((start + 0.4) * S)], ended_ns=int((start + 0.4) * S))
        for i, (planned, start) in enumerate(times)
    ]
    held = [
        msgspec.structs.replace(each, due_ns=int(start * S), sent_ns=int(start * S))
        for each, (_, start) in zip(held, times, strict=True)
    ]
    (finding,) = invalidating(held, load=msgspec.structs.replace(POISSON, max_in_flight=2))
    assert finding.code is FindingCode.HELD_BACK
    assert finding.parameters["held_share"] == pytest.approx(0.99, abs=0.02)
    assert FindingCode.HELD_BACK.cause is Cause.EXPERIMENT


def test_a_steady_queue_is_fine():
    steady = [request(i, i / 10, ended_ns=i * S // 10 + 2 * S) for i in range(-20, 100)]
    assert findings_of(steady, load=POISSON) == []


@pytest.mark.parametrize("load", [Load(concurrency=2), POISSON])
@pytest.mark.parametrize(("factor", "code"), [(2.0, FindingCode.BECAME_SLOWER), (0.5, FindingCode.BECAME_FASTER)])
def test_an_engine_that_changes_its_pace_has_no_figures(load: Load, factor: float, code: FindingCode):
    """From the 60th of 100 requests on, 6 s into the window, answers take another time."""
    changed = [paced(i, factor if i >= 60 else 1.0) for i in range(100)]
    finding = next(finding for finding in invalidating(changed, load=load) if finding.code is code)
    assert finding.parameters["at_s"] == pytest.approx(6.0, abs=0.3)
    assert invalidating([paced(i) for i in range(100)], load=load) == []


def test_a_step_of_the_first_token_alone_shows_in_an_open_loop_and_a_queue_is_none():
    rng = Random(1)
    arrivals_s = list(accumulate(rng.expovariate(20.0) for _ in range(190)))
    ttft_s = [rng.lognormvariate(0, 0.2) / (10 if at_s < 5 else 5) for at_s in arrivals_s]
    stepped = answered([*zip(arrivals_s, ttft_s, strict=True)])
    (finding,) = invalidating(stepped, load=msgspec.structs.replace(POISSON, rate_per_s=20.0))
    assert (finding.code, finding.parameters["latency"]) == (FindingCode.BECAME_SLOWER, "ttft")
    assert finding.parameters["at_s"] == pytest.approx(5.0, abs=0.5)

    free_s, queued_s = 0.0, []
    for at_s in arrivals_s:  # one slot, busy for 0.92 of the time
        free_s = max(free_s, at_s) + 0.046 * rng.uniform(0.5, 1.5)
        queued_s.append(free_s - at_s)
    queued = answered([*zip(arrivals_s, queued_s, strict=True)])
    codes_of_queue = {each.code for each in findings_of(queued, load=msgspec.structs.replace(POISSON, rate_per_s=20.0))}
    assert FindingCode.BECAME_SLOWER not in codes_of_queue


def answered(times_s: Sequence[tuple[float, float]]) -> list[RequestRecord]:
    """Answers of two tokens, the second one 10 ms behind the first, by time of arrival and TTFT."""
    return [
        request(
            i, at_s, chunk_ns=[int((at_s + s) * S), int((at_s + s + 0.01) * S)], ended_ns=int((at_s + s + 0.01) * S)
        )
        for i, (at_s, s) in enumerate(times_s)
    ]


def paced(number: int, factor: float = 1.0) -> RequestRecord:
    """Planned at a tenth of a second, with its first token 50 ms later and its second after 50 more."""
    planned_ns = number * S // 10
    first_ns, last_ns = (planned_ns + round(ms * factor * S / 1000) for ms in (50, 100))
    return request(number, number / 10, chunk_ns=[first_ns, last_ns], ended_ns=last_ns)


@pytest.mark.parametrize(("t_ns", "counts"), [(5 * S, True), (11 * S, False)])
def test_throttling_counts_inside_the_window(t_ns: int, counts: bool):
    samples = [TelemetryRecord(t_ns + i, "gpu0", {"throttle_reasons": HEAT_OR_BRAKE}) for i in range(2)]
    assert findings_of(telemetry=samples) == (
        [invalid(FindingCode.THROTTLED, gpu="gpu0", held_s=10.0)] if counts else []
    )


def test_a_gpu_error_voids_a_trial_and_a_corrected_one_is_a_note_of_a_valid_trial():
    corrected = [TelemetryRecord(t, "gpu0", {"ecc_corrected_errors": t}) for t in (1, 2)]
    corrected_note = note(FindingCode.ECC_CORRECTED, gpu="gpu0", errors=1)
    assert judge(evidence(telemetry=corrected)) == (Verdict.VALID, [corrected_note])
    xid = TelemetryRecord(3, "gpu0", {"xid": 79})
    assert judge(evidence(telemetry=[*corrected, xid])) == (
        Verdict.INVALID, [invalid(FindingCode.XID, gpu="gpu0", xid=79), corrected_note],
    )  # fmt: skip


def test_a_lost_request_is_our_bug():
    assert findings_of(planned=11) == [invalid(FindingCode.REQUESTS_LOST, planned_requests=11, logged_requests=10)]


def test_answers_that_claim_more_tokens_than_they_can_have_void_the_trial():
    claim = {"output_tokens": 100, "text": "a word", "disbelieved": TokenClaim.USAGE}
    claims = [request(i, **claim, token_source=TokenSource.ASSUMED) for i in range(2)]
    miscounted = invalid(
        FindingCode.TOKENS_MISCOUNTED, miscounted_requests=2, ok_requests=12, claimed_tokens=100, text_bytes=6,
        chunks=2, asked_tokens=2,
    )  # fmt: skip
    assert miscounted in invalidating([*GOOD, *claims])
    assert miscounted not in findings_of([*GOOD, *claims], max_failure_share=0.2)
    counted = [request(i, **claim, token_source=TokenSource.IDS) for i in range(2)]
    assert warning(
        FindingCode.TOKENS_CONTRADICTED, claim="usage", contradicted_requests=2, ok_requests=12, used_tokens=2,
        source="ids", claimed_tokens=100,
    ) in findings_of([*GOOD, *counted])  # fmt: skip


def test_answers_whose_tokens_were_mostly_not_streamed_are_a_warning():
    hidden = [request(i, token_source=TokenSource.UNPLACED) for i in range(10)]
    assert findings_of(hidden) == [warning(FindingCode.TOKENS_UNPLACED, unplaced_requests=10, ok_requests=10)]


@pytest.mark.parametrize(
    ("at_once", "answers", "is_warned"), [(20, 6, True), (16, 6, True), (12, 6, False), (20, 5, False)]
)
def test_answers_in_one_piece_are_a_warning(at_once: int, answers: int, is_warned: bool):
    """Of ten answers of 20 tokens."""
    streamed = [S + number * 10**7 for number in range(20)]
    pieces = [S] * at_once + streamed[at_once:]
    found = codes(
        findings_of(
            [
                request(i, chunk_ns=pieces if i < answers else streamed, chunk_tokens=[1] * 20, ended_ns=2 * S)
                for i in range(10)
            ]
        )
    )
    assert (FindingCode.BUFFERED in found) is is_warned


@pytest.mark.parametrize(
    "odd",
    [
        {"planned_ns": 5 * S, "sent_ns": None},
        {"sent_ns": 5 * S},
        {"chunk_ns": [3, 2], "chunk_tokens": [1, 1]},
        {"ended_ns": 0},
    ],
)
def test_tokens_that_come_before_their_cause_void_a_trial(odd: dict[str, Any]):
    found = codes(invalidating([*GOOD[1:], msgspec.structs.replace(GOOD[0], **odd)]))
    assert FindingCode.IMPOSSIBLE_TIMES in found


def test_wrong_answer_and_prompt_lengths_are_warnings():
    odd = [
        request(0, output_tokens=1),
        request(1, prompt_tokens=4),
        request(2, cached_tokens=2),  # no warning: what is right depends on what the cache was declared to hold
        request(3, token_source=TokenSource.APPORTIONED),
        request(4, token_source=TokenSource.ASSUMED),
    ]
    assert findings_of(odd) == [
        warning(FindingCode.OUTPUT_LENGTH, wrong_requests=1, ok_requests=5, output_tokens=1, asked_tokens=2),
        warning(FindingCode.INPUT_LENGTH, wrong_requests=1, ok_requests=5, engine_tokens=4, planned_tokens=3),
        warning(FindingCode.TOKENS_APPORTIONED, apportioned_requests=1, ok_requests=5),
        warning(FindingCode.TOKENS_ASSUMED, assumed_requests=1, ok_requests=5),
    ]


def test_requests_that_were_sent_twice_count_as_failures_do():
    """An idle close in a race with a request hits few; a server that resets them hits more than may fail."""
    again = [request(0, is_resent=True), *GOOD[1:]]
    assert findings_of(again, max_failure_share=0.1) == [
        warning(FindingCode.RESENT, resent_requests=1, measured_requests=len(GOOD))
    ]
    assert invalidating(again) == [invalid(FindingCode.RESENT, resent_requests=1, measured_requests=len(GOOD))]


def test_tokens_behind_the_end_mark_are_told():
    assert findings_of([request(0, behind_end=50), *GOOD[1:]]) == [
        warning(FindingCode.BEHIND_END, behind_requests=1, ok_requests=len(GOOD), behind_events=50)
    ]


def test_a_beginning_in_which_nobody_sees_anything_is_told():
    blank = [msgspec.structs.replace(each, blank_chunks=1) for each in GOOD]
    (found,) = findings_of(blank)
    assert (found.code, found.parameters["blank_requests"]) == (FindingCode.BLANK_BEGINNING, len(GOOD))
    assert findings_of([*blank[:5], *GOOD[5:]]) == []


def test_reasoning_that_nobody_sees_is_a_warning():
    odd = [
        request(0, hidden_tokens=480, reasoning_tokens=480),
        request(1, chunk_kinds="r" * len(GOOD[1].chunk_ns)),
        *GOOD[2:5],
    ]
    assert findings_of(odd) == [
        warning(FindingCode.HIDDEN_REASONING, hidden_requests=1, ok_requests=5, hidden_tokens=480),
        warning(FindingCode.NOTHING_VISIBLE, invisible_requests=1, ok_requests=5),
    ]


@pytest.mark.parametrize("reason", ["content_filter", "refusal", "SAFETY", "guardrail_intervened"])
def test_answers_that_a_filter_cut_are_a_warning(reason: str):
    cut = [request(0, finish_reason=reason), *(request(i, finish_reason="length") for i in range(1, 5))]
    assert findings_of(cut) == [warning(FindingCode.ANSWERS_CUT, cut_requests=1, ok_requests=5, reason=reason)]


def test_responses_that_stay_open_behind_their_answer_are_a_warning():
    def answers(open_s: float, count: int) -> list[RequestRecord]:
        ends = [request(i).ended_ns for i in range(5)]
        open_ns = [round((open_s if i < count else 0) * S) for i in range(5)]
        return [request(i, last_event_ns=end, ended_ns=end + open_ns[i]) for i, end in enumerate(ends)]

    expected = warning(FindingCode.LEFT_OPEN, open_requests=3, ok_requests=5, open_s=0.2)
    assert findings_of(answers(0.2, 3)) == [expected]
    assert findings_of(answers(0.2, 2)) == findings_of(answers(0.04, 5)) == []


@pytest.mark.parametrize(
    ("text", "thinks"), [("<think>hm</think>18", True), ("hm</think>18", True), ("what is <think>?", False)]
)
def test_thinking_in_the_text_is_a_warning(text: str, thinks: bool):
    found = findings_of([request(0, text=text), *GOOD[1:5]])
    assert found == ([warning(FindingCode.THINKING_IN_TEXT, thinking_requests=1, ok_requests=5)] if thinks else [])


def test_right_and_wrong_answers_may_have_any_length():
    assert findings_of([request(i, requested_output_tokens=3, check="number") for i in range(5)]) == []


def test_lengths_that_were_not_requested_are_not_checked():
    assert findings_of([request(i, requested_output_tokens=None, requested_input_tokens=None) for i in range(10)]) == []


def error(ttft_s: float = 0.001, itl_s: float | None = 0.001, chunks_per_s: float = 10.0) -> ClientError:
    by_metric = {"ttft_p50_s": ttft_s / 2, "ttft_p99_s": ttft_s}
    if itl_s is not None:
        by_metric |= {"chunk_gap_p50_s": 0.0, "chunk_gap_p99_s": itl_s}
    return ClientError(20, chunks_per_s, send_lag_s=0.0, cpu_s=0.1, by_metric=by_metric)


def test_a_client_error_above_a_tenth_invalidates_the_trial():
    """TTFT is 100 ms in the samples, the gap too."""
    assert invalidating(client_error=error(0.009, 0.009)) == []
    for client_error, latency, error_s in ((error(0.012), "ttft", 0.012), (error(itl_s=0.03), "chunk_gap", 0.03)):
        (finding,) = invalidating(client_error=client_error)
        assert finding == invalid(
            FindingCode.CLIENT_ERROR,
            latency=latency,
            error_s=error_s,
            typical_s=0.1,
            max_error_share=0.1,
            busy_share=0.08,
        )
    assert invalidating(client_error=error(0.03, 0.03), max_error_share=0.5) == []


def test_an_error_of_gaps_is_compared_with_gaps_not_with_tokens():
    """Four tokens in each chunk: a gap of 100 ms is an ITL of 25 ms, and its error is spread like it."""
    grouped = [request(i, chunk_tokens=[4, 4], output_tokens=8, requested_output_tokens=8) for i in range(10)]
    assert invalidating(grouped, client_error=error(itl_s=0.009)) == []


def test_chunks_that_come_in_bursts_are_judged_by_their_pace():
    start = 5 * S
    burst = request(5, chunk_ns=[start + t * S // 100 for t in (10, 10, 10, 40)], chunk_tokens=[1] * 4)
    assert invalidating([burst], client_error=error(itl_s=0.009)) == []  # the median gap is 0, the mean 100 ms


def test_answers_of_one_chunk_and_failures_have_no_gap_to_judge():
    assert invalidating(client_error=error(itl_s=None)) == []
    nothing = [request(i, chunk_ns=[], chunk_tokens=[]) for i in range(10)]
    assert invalidating(nothing, client_error=error(9.0, 9.0)) == []


def test_a_calibration_at_a_slower_pace_is_a_warning():
    """20 chunks in the window of 10 s."""
    assert findings_of(client_error=error(chunks_per_s=1.4)) == []
    assert findings_of(client_error=error(chunks_per_s=1.2)) == [
        warning(FindingCode.UNCALIBRATED_PACE, calibrated_chunks_per_s=1.2, trial_chunks_per_s=2.0)
    ]


def traffic(cache: Cache = Cache.COLD, **changes: Any) -> TrafficRecord:
    """Ten prompts of 100 tokens, of which 200 tokens were in an earlier one."""
    fields: dict[str, Any] = {
        "sha256": "0", "sessions": 10, "requests": 10, "prompt_tokens": 1000, "output_tokens": 20,
        "repeated_tokens": 200, "block_tokens": 16, "cache": cache,
    }  # fmt: skip
    return TrafficRecord(**{**fields, **changes})


def hitting(*cached: int | None) -> list[RequestRecord]:
    return [
        request(i, prompt_tokens=100, requested_input_tokens=100, cached_tokens=hit) for i, hit in enumerate(cached)
    ]


@pytest.mark.parametrize(
    ("cached", "cold"),
    [
        ([0] * 10, True),
        ([0, *[40] * 9], True),  # 360 = 200 that the trial repeats, and a block of 16 for each of ten requests
        ([1, *[40] * 9], False),
        ([100] * 10, False),
        ([None] * 10, True),
        ([None] * 9 + [96], True),
    ],
)
def test_a_cold_trial_may_hit_what_it_repeats_itself_and_no_more(cached: list[int | None], cold: bool):
    hits = sum(hit or 0 for hit in cached)
    complaint = invalid(FindingCode.CACHE_NOT_COLD, cached_tokens=hits, prompt_tokens=1000, repeated_tokens=360)
    assert findings_of(hitting(*cached), traffic=traffic()) == ([] if cold else [complaint])


@pytest.mark.parametrize(("ramp_requests", "hits", "cold"), [(2, 360, True), (8, 360, False), (8, 240, True)])
def test_what_the_ramp_was_planned_to_repeat_but_did_not_send_may_not_be_hit(ramp_requests: int, hits: int, cold: bool):
    """Of 8 requests planned for the ramp 2 were sent: 120 of its 160 repeated tokens were not."""
    sent = [msgspec.structs.replace(one, phase=Phase.RAMP) if one.index < 2 else one for one in hitting(*[0] * 9, hits)]
    planned = traffic(ramp_requests=ramp_requests, ramp_repeated_tokens=160)
    found = [each.code for each in findings_of(sent, traffic=planned)]
    assert (FindingCode.CACHE_NOT_COLD not in found) is cold


def test_cache_hits_of_the_warm_up_do_not_count():
    warm_up = request(10, phase=Phase.WARMUP, cached_tokens=900, prompt_tokens=1000, requested_input_tokens=1000)
    assert findings_of([*hitting(*[0] * 10), warm_up], traffic=traffic()) == []


@pytest.mark.parametrize("cache", [Cache.PRIMED, Cache.WARM])
def test_a_cache_that_was_filled_on_purpose_may_be_hit(cache: Cache):
    assert findings_of(hitting(*[90] * 10), traffic=traffic(cache)) == []


@pytest.mark.parametrize(
    ("cache", "cached", "warned"),
    [
        (Cache.WARM, 49, True),
        (Cache.WARM, 50, False),
        (Cache.PRIMED, 0, True),
        (Cache.PRIMED, 20, False),
    ],
)
def test_a_cache_that_was_filled_and_is_not_hit_is_a_warning(cache: Cache, cached: int, warned: bool):
    requests = hitting(*[cached] * 10)
    complaint = warning(FindingCode.CACHE_UNUSED, cache=cache.value, cached_tokens=cached * 10, prompt_tokens=1000)
    assert findings_of(requests, traffic=traffic(cache)) == ([complaint] if warned else [])


@pytest.mark.parametrize("cache", [Cache.PRIMED, Cache.WARM])
def test_an_engine_that_reports_no_hits_leaves_the_cache_unknown(cache: Cache):
    assert findings_of(hitting(*[None] * 10), traffic=traffic(cache)) == [
        warning(FindingCode.CACHE_UNKNOWN, cache=cache.value)
    ]


def test_prompts_of_the_wrong_length_are_a_warning():
    off = traffic(off_length=2, off_example="chat-3: 12 tokens where 10 were meant")
    assert findings_of(traffic=off) == [
        warning(
            FindingCode.PROMPT_LENGTH, wrong_requests=2, planned_requests=10,
            example="chat-3: 12 tokens where 10 were meant",
        )
    ]  # fmt: skip


def test_trials_without_a_traffic_record_are_not_judged_by_it():
    assert findings_of(hitting(*[100] * 10)) == []


def of_slots(users: int, freeze_s: float = 0.0) -> list[RequestRecord]:
    """A minute of a closed loop with answers of 0.2 s; from second 30 on the engine stops for a time."""
    planned = [slot / users * 0.2 + 0.2 * i for slot in range(users) for i in range(300)]
    made = []
    for number, at_s in enumerate(planned):
        begun = round(at_s * S)
        times = [begun + 100_000_000, begun + 200_000_000]
        if at_s < 30 <= at_s + 0.2:
            times = [t + round(freeze_s * S) if t > 30 * S else t for t in times]
        if not 30 <= at_s < 30 + freeze_s:
            made.append(request(number, at_s, chunk_ns=times, ended_ns=times[-1]))
    return made


def test_a_freeze_of_the_engine_is_a_warning():
    """The token rate falls by a sixth, and no latency but the p99 shows why."""
    minute = Window(0, 60 * S)
    assert findings_of(of_slots(16), window=minute) == []
    (finding,) = findings_of(of_slots(16, 10.0), window=minute)
    assert (finding.code, finding.severity) == (FindingCode.ENGINE_FROZE, Severity.WARNING)
    assert finding.parameters["silent_s"] == pytest.approx(10.0, abs=0.1)
    assert finding.parameters["in_flight"] == 15  # one answer ended just before
    assert finding.code.cause is Cause.ENGINE


@pytest.mark.parametrize(("answer_s", "severity"), [(60.0, Severity.WARNING), (0.5, None)])
def test_rates_over_a_long_drain_are_a_warning(answer_s: float, severity: Severity | None):
    """A trace of 21 s at 50 requests/s: answers of 60 s make it 13 requests/s."""
    load, makespan = Load(), Window(0, round((21 + answer_s) * S), WindowKind.MAKESPAN)
    requests = [
        request(i, i / 50, chunk_ns=[round((i / 50 + answer_s) * S)], ended_ns=round((i / 50 + answer_s) * S),
                chunk_tokens=[2])
        for i in range(1050)
    ]  # fmt: skip
    found = findings_of(requests, load=load, window=makespan)
    assert [(finding.code, finding.severity) for finding in found] == (
        [(FindingCode.DRAIN_IN_RATES, severity)] if severity else []
    )
    assert all("60" in sentence(finding) for finding in found)
