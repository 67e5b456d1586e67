"""Runs by rules of play in virtual time, from the trace to the stored record."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.results import Run
from bakeoff.results.compare.comparability import difference
from bakeoff.results.records import Phase, Verdict, WindowKind
from bakeoff.results.units import NS_PER_S

AGENTX = "agentx-harness-1.0"


def session(name: str, calls: int) -> dict[str, Any]:
    """Calls of ten tokens every 20 s, each answered after a second; ten minutes more before call 16."""
    at_s = [20.0 * k + 600.0 * (k > 15) for k in range(calls)]
    requests = [
        {"t": t, "type": "n", "in": 100 + 10 * k, "out": 10, "hash_ids": [], "api_time": 1.0}
        for k, t in enumerate(at_s)
    ]
    return {"id": name, "block_size": 64, "requests": requests}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(json.dumps(session(f"s{number}", 40)) + "\n" for number in range(4)))
    return str(path)


def run(trace: str, root: Path, rules: str, **trial: Any) -> Run:
    experiment = virtual_experiment(
        ["a"],
        [{"concurrency": 3}],
        workload={"name": "trace", "options": {"path": trace, "format": "claude-code"}},
        trial={"warm_up_s": 0.0, **trial},
        rules=rules,
        repeats=1,
    )
    return virtual_run(experiment, {"a": VirtualEngine(service=PerToken(Fixed(0.5), Fixed(0.01)))}, root)


def test_agentx_primes_warms_up_and_caps_idle_time(trace: str, tmp_path: Path):
    (trial,) = run(trace, tmp_path, AGENTX, duration_s=900.0, max_foreign_share=1.0).finished
    phases = Counter(request.phase for request in trial.requests)
    assert phases[Phase.WARMUP] == 3 + 3 * 10
    record = trial.record
    assert record.verdict is Verdict.VALID
    assert record.rules is not None
    assert (record.rules.name, record.rules.broken) == (AGENTX, [])
    load = sorted((r for r in trial.requests if r.phase is Phase.MEASURED), key=lambda request: request.planned_ns)
    assert load[0].planned_ns == record.issue_start_ns
    assert all(request.session.startswith("s") for request in load)
    # Nothing is in flight for at most ten seconds.
    busy_ns = load[0].ended_ns
    for request in load[1:]:
        assert request.planned_ns - busy_ns <= 10 * NS_PER_S + 1000
        busy_ns = max(busy_ns, request.ended_ns)
    assert record.window.kind is WindowKind.MAKESPAN


def test_a_short_play_is_not_by_the_rules(trace: str, tmp_path: Path):
    short = run(trace, tmp_path, AGENTX, duration_s=60.0)
    (line,) = short.off_rules
    assert line.startswith(f"not by the rules {AGENTX}: trial.duration_s is 60, less than 900; the last token arrived")
    assert short.declared[0] == f"rules of play: {AGENTX}"


def test_by_count_every_call_of_the_trace_is_sent_once(trace: str, tmp_path: Path):
    (trial,) = run(trace, tmp_path, "mlperf-endpoints", timeout_s=86400.0).finished
    assert Counter((r.session, r.turn) for r in trial.requests) == {
        (f"s{number}", turn): 1 for number in range(4) for turn in range(40)
    }
    starts_ns = [request.planned_ns for request in trial.requests if request.turn == 0]
    ends_ns = [max(r.ended_ns for r in trial.requests if r.session == f"s{number}") for number in range(4)]
    # The fourth session takes the first free slot; the window closes when the next finds none.
    assert max(starts_ns) == min(ends_ns[:3])
    assert trial.record.issue_end_ns == sorted(ends_ns)[1]


def test_runs_of_different_rules_are_not_comparable(trace: str, tmp_path: Path):
    runs = [run(trace, tmp_path / rules, rules, duration_s=30.0, max_window_s=600.0) for rules in ("steady", AGENTX)]
    assert difference(each.manifest for each in runs) == f"rules (unset and {AGENTX})"


def test_together_begins_with_all_sessions_at_once_and_equal_requests_stay_in_step(tmp_path: Path):
    lengths = {"input_tokens": 8, "output_tokens": 20, "spread": 0.0}

    def starts_ns(rules: str) -> list[int]:
        experiment = virtual_experiment(
            ["a"], [{"concurrency": 4}], workload={"name": "random", "options": lengths},
            trial={"warm_up_s": 0.0, "duration_s": 8.0, "ramp_s": 2.0}, rules=rules, repeats=1,
        )  # fmt: skip
        engine = VirtualEngine(service=PerToken(Fixed(0.5), Fixed(0.01)))
        (trial,) = virtual_run(experiment, {"a": engine}, tmp_path / rules).finished
        assert trial.record.verdict is Verdict.VALID
        return [request.planned_ns for request in trial.inside]

    together, steady = (starts_ns(rules) for rules in ("together", "steady"))
    apart_ns = NS_PER_S // 100
    assert len({start // apart_ns for start in together}) * 4 <= len(together) + 4, "four begin at each instant"
    assert len({start // apart_ns for start in steady}) > len(steady) / 2
