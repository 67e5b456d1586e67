"""Two sides are compared over the requests that both served."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bakeoff.harness.virtual import Batched, Fixed, PerToken, VirtualEngine, virtual_experiment, virtual_run
from bakeoff.results import Run
from bakeoff.results.compare.common_part import CommonTrial, over_common_part
from bakeoff.results.compare.comparison import EngineComparison, compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.sides import AnyTrial, side_of
from bakeoff.results.export.benchmark_json import StoredTrial, stored
from bakeoff.results.metrics import CATALOGUE, Value, absent
from bakeoff.results.records import ClientRecord, Load, Outcome, Phase, RequestRecord, Slo, TrafficRecord
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.work import work_of
from bakeoff.results.statistics import Judgement
from tests.results.handmade import request, trial
from tests.selection import sampled

NOTHING = dict.fromkeys(CATALOGUE, absent("not simulated"))
CLOSED, OPEN = Load(concurrency=2), Load(rate_per_s=10.0, arrival="poisson")


def served(index: int, planned: float, took: float, tokens: int = 2, **changes: object) -> RequestRecord:
    """Planned and answered at these milliseconds; the first token takes half of the time."""
    chunks = [planned + took / 2, planned + took]
    record = request(planned, chunks, [1, tokens - 1], index=index)
    changes = {"session": f"s{index}", "requested_output_tokens": tokens, **changes}
    return msgspec.structs.replace(record, **changes)  # type: ignore[arg-type]


def of(
    requests: Sequence[RequestRecord], load: Load = CLOSED, *, repeat: int = 0, metrics: dict[str, Value] = NOTHING
) -> Trial:
    record = msgspec.structs.replace(trial(load), repeat=repeat)
    return Trial(record, Requests(requests), [], NOTHING | metrics, {}, {}, work=work_of(Requests(requests)))


def over(a: AnyTrial, b: AnyTrial, slo: Slo | None = None) -> tuple[AnyTrial, AnyTrial]:
    (of_a,), (of_b,) = (side["s"] for side in over_common_part({"s": [a]}, {"s": [b]}, slo or Slo()))
    return of_a, of_b


def value(trial: AnyTrial, name: str) -> float | None:
    return trial.metrics[name].value


SLOWER = of([served(index, 200 * index, 200, 10 * (index + 1)) for index in range(4)])
FASTER = of([served(index, 100 * index, 100, 10 * (index + 1)) for index in range(8)])


def test_rates_and_latencies_are_those_of_the_common_requests() -> None:
    """Requests 0 to 3 have 100 tokens. They took 4 · 200 and 4 · 100 ms of two sessions: 400 and 200 ms."""
    slower, faster = over(SLOWER, FASTER)
    assert isinstance(slower, CommonTrial)
    assert isinstance(faster, CommonTrial)
    assert [value(side, "output_tokens_per_s") for side in (slower, faster)] == [250.0, 500.0]
    assert [value(side, "requests_per_s") for side in (slower, faster)] == [10.0, 20.0]
    assert [value(side, "ttft_p50_s") for side in (slower, faster)] == [0.1, 0.05]
    assert [side.work.asked_tokens for side in (slower, faster)] == [100, 100]
    assert value(slower, "itl_p50_s") is None, "tokens are counted in the whole window"


def test_energy_follows_the_rates_of_the_common_requests() -> None:
    """Twice the tokens per second in the same time are half of the energy of each."""
    known = {"output_tokens_per_s": Value(1000.0), "energy_per_output_token_j": Value(3.0)}
    _, faster = over(SLOWER, of(FASTER.requests, metrics=known))
    assert value(faster, "energy_per_output_token_j") == 6.0
    assert value(faster, "energy_per_request_j") is None


def test_sessions_are_those_of_the_common_requests() -> None:
    """Ten requests of 0.2 and 0.1 s, and pauses of 1 s; the later requests of the faster side take 5 s each."""
    traffic = TrafficRecord(
        sha256="", sessions=1, requests=1, prompt_tokens=1, output_tokens=1, repeated_tokens=0, block_tokens=16,
        turns=10.0, session_tool_s=1.0,
    )  # fmt: skip
    later = [served(index, 100 * index, 5000) for index in range(4, 8)]
    sides = [SLOWER, of([*FASTER.requests[:4], *later])]
    planned = [msgspec.structs.replace(s, record=msgspec.structs.replace(s.record, traffic=traffic)) for s in sides]
    assert [value(side, "session_s") for side in over(*planned)] == [3.0, 2.0]


def test_failures_and_the_slo_are_those_of_the_common_requests() -> None:
    late = [*FASTER.requests[:6], *(served(i, 100 * i, 90, outcome=Outcome.TIMEOUT) for i in (6, 7))]
    early = [served(0, 0, 100, 10, outcome=Outcome.HTTP_ERROR), *FASTER.requests[1:]]
    slo = Slo(e2e_s=0.15)
    assert value(over(SLOWER, of(late))[1], "failures") == 0
    slower, faster = over(SLOWER, of(early), slo)
    assert (value(faster, "failures"), value(faster, "attainment"), value(slower, "attainment")) == (1.0, 0.75, 0.0)
    assert [value(side, "goodput_per_s") for side in (slower, faster)] == [0.0, 15.0]
    cancelled = [*FASTER.requests[:3], msgspec.structs.replace(FASTER.requests[3], outcome=Outcome.CANCELLED)]
    assert over(SLOWER, of(cancelled))[0].work.requests == 3


def test_an_open_loop_keeps_its_rates() -> None:
    rate = {"requests_per_s": Value(7.0)}
    slower, faster = over(of(SLOWER.requests, OPEN, metrics=rate), of(FASTER.requests, OPEN, metrics=rate))
    assert [value(side, "requests_per_s") for side in (slower, faster)] == [7.0, 7.0]
    assert value(faster, "ttft_p50_s") == 0.05


def test_requests_of_sessions_that_began_before_are_common_only_if_they_are_the_same() -> None:
    """The second side began another session at the same place, and asks for the rest of an answer."""
    window = [served(0, 300, 10), served(1, 400, 10)]
    begun = [served(-9, 100, 10, phase=Phase.RAMP, session="x", turn=1)]
    same = [served(-4, 150, 10, phase=Phase.RAMP, session="x", turn=1)]
    others = [
        [served(-9, 100, 10, phase=Phase.RAMP, session="x", turn=2)],
        [served(-9, 100, 10, phase=Phase.RAMP, session="y", turn=1)],
        [served(-9, 100, 10, 3, phase=Phase.RAMP, session="x", turn=1)],
        [served(-9, 100, 10, phase=Phase.RAMP, session="x", turn=1, part=0.5)],
        [served(-9, 100, 10, phase=Phase.RAMP, session="x", turn=1, cycle=1)],
        [*begun, *same],
        [],
    ]
    assert over(of([*begun, *window]), of([*same, *window]))[0].work.requests == 3
    for other in others:
        assert over(of([*begun, *window]), of([*other, *window]))[0].work.requests == 2


@pytest.mark.parametrize(("clients", "took_s"), [([], 0.2), ([ClientRecord("here", 4, 0.1, 1)], 0.3)])
def test_only_this_client_pauses_behind_failures(clients: list[ClientRecord], took_s: float) -> None:
    """Four requests of 100 ms in two sessions; two fail, each of which pauses its slot 100 ms."""
    requests = [served(i, 100 * i, 100, outcome=Outcome.HTTP_ERROR if i % 2 else Outcome.OK) for i in range(4)]
    one = of(requests)
    one = msgspec.structs.replace(one, record=msgspec.structs.replace(one.record, clients=clients))
    assert value(over(one, one)[0], "requests_per_s") == pytest.approx(2 / took_s)


def test_rates_are_those_of_the_window_where_cycles_are_unknown() -> None:
    begun = [served(-9 + 2 * i, 100 * i, 10, phase=Phase.RAMP, session=f"x{i}", turn=1) for i in range(4)]
    one, other = over(of(begun), of(begun, metrics={"requests_per_s": Value(7.0)}))
    assert isinstance(one, CommonTrial)
    assert (one.has_rates, value(one, "ttft_p50_s"), value(other, "requests_per_s")) == (False, 0.005, 7.0)


def test_too_few_common_requests_stand_for_no_trial() -> None:
    elsewhere = of([served(index, 100 * index, 100) for index in (0, 20, 21, 22)])
    assert over(SLOWER, elsewhere) == (SLOWER, elsewhere)
    assert over(SLOWER, of([])) == (SLOWER, of([]))
    many, rest = [served(i, i, 10) for i in range(100)], [served(i, i, 10) for i in range(100, 500)]
    assert [over(of(many), of([*many[:common], *rest]))[0].work.requests for common in (50, 49)] == [50, 100]
    stored_trial = StoredTrial(FASTER.record, FASTER.metrics)
    assert over(SLOWER, stored_trial) == (SLOWER, stored_trial)


def test_all_trials_of_a_load_are_compared_in_the_same_way() -> None:
    """The second repeat has too few common requests; then that its cycles are unknown."""
    elsewhere = of([served(index, 100 * index, 100) for index in (0, 20, 21, 22)], repeat=1)
    again = of(SLOWER.requests, repeat=1)
    a, b = {"s": [SLOWER, again]}, {"s": [FASTER, elsewhere]}
    assert over_common_part(a, b, Slo()) == (a, b)
    begun = of([served(-9 + 2 * i, 100 * i, 10, phase=Phase.RAMP, turn=1) for i in range(4)], repeat=1)
    a, b = over_common_part({"s": [SLOWER, begun]}, {"s": [FASTER, begun]}, Slo())
    assert [value(trial, "requests_per_s") for trial in (*a["s"], *b["s"])] == [None] * 4
    assert value(b["s"][0], "ttft_p50_s") == 0.05


def test_trials_without_a_partner_are_compared_over_what_all_served() -> None:
    fewest = of(SLOWER.requests[:3], repeat=1)
    a, b = over_common_part({"s": [SLOWER, fewest]}, {"s": [FASTER]}, Slo())
    assert [trial.work.requests for trial in (*a["s"], *b["s"])] == [4, 3, 4]
    a, b = over_common_part({"s": [SLOWER], "t": [fewest]}, {"u": [FASTER]}, Slo())
    assert [trial.work.requests for side in (a, b) for trials in side.values() for trial in trials] == [3, 3, 3]
    assert over_common_part({}, {"s": [FASTER]}, Slo()) == ({}, {"s": [FASTER]})


SLOW = VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.02)), trial_noise=0.01)
CONFIG = ComparisonConfig(metrics=("output_tokens_per_s", "requests_per_s", "ttft_p50_s", "tpot_p50_s", "e2e_p50_s"))


def sessions(tmp_path: Path, turns: int, think_s: float) -> dict[str, object]:
    """Sessions whose answers have log-normal lengths with a coefficient of variation of 1.2."""
    rng, prompt = np.random.default_rng(0), {"input_tokens": 8, "prompt": " ".join(["word"] * 8)}
    lengths = np.maximum(1, rng.lognormal(2.5, 0.94, (600, turns))).astype(int).tolist()
    lines = [
        {
            "id": f"s{number}",
            "turns": [
                {"output_tokens": tokens, "think_s": think_s if turn else 0.0, **prompt}
                for turn, tokens in enumerate(answers)
            ],
        }
        for number, answers in enumerate(lengths)
    ]
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return {"name": "sessions", "options": {"path": str(path)}}


def measured(
    tmp_path: Path, engine: VirtualEngine, factor: float, *, turns: int = 1, think_s: float = 0.0, users: int = 4
) -> Run:
    engines = {"a": engine, "b": msgspec.structs.replace(engine, slowdown=1 / factor)}
    experiment = virtual_experiment(
        engines, [{"concurrency": users}], trial={"warm_up_s": 0.0, "duration_s": 10.0},
        workload=sessions(tmp_path, turns, think_s),
    )  # fmt: skip
    return virtual_run(experiment, engines, tmp_path)


def compared(run: Run) -> EngineComparison:
    return compare_sides(side_of(run, "a"), side_of(run, "b"), CONFIG)


@pytest.mark.parametrize("service", [SLOW.service, Batched(0.01, 0.002, 0.0005)])
def test_a_faster_engine_is_better_by_its_factor_in_every_row(tmp_path: Path, service: Batched | PerToken) -> None:
    """Although it gets further in the plan, to requests of other lengths."""
    run = measured(tmp_path, msgspec.structs.replace(SLOW, service=service), 1.5)
    assert len({(trial.work.asked_tokens or 0) / trial.work.ok for trial in run.finished}) > 1
    comparison = compared(run)
    assert comparison.work["c=4"].is_equal
    assert {row.judgement for row in comparison.comparisons} == {Judgement.BETTER}
    ratios = {row.metric: row.ratio.centre for row in comparison.comparisons if row.ratio}
    assert ratios["output_tokens_per_s"] == pytest.approx(1.5, rel=0.03)
    assert ratios["requests_per_s"] == pytest.approx(ratios["output_tokens_per_s"]), "of the same requests"
    assert ratios["ttft_p50_s"] == pytest.approx(1 / 1.5, rel=0.05)


def test_a_file_of_the_run_gives_the_same_comparison(tmp_path: Path) -> None:
    run = measured(tmp_path, SLOW, 1.5, turns=3)
    file = stored("title", run)
    assert compare_sides(side_of(file, "a"), side_of(file, "b"), CONFIG) == compared(run)


@pytest.mark.parametrize("think_s", sampled([0.0, 0.5], [0.5]))
def test_sessions_of_several_turns_are_compared_turn_by_turn(tmp_path: Path, think_s: float) -> None:
    run = measured(tmp_path, SLOW, 1.3, turns=4, think_s=think_s, users=8)
    of_a, of_b = ({"s": [trial for trial in run.finished if trial.record.engine == engine]} for engine in "ab")
    a, b = over_common_part(of_a, of_b, Slo())
    for one, other, whole in zip(a["s"], b["s"], of_a["s"], strict=True):
        assert isinstance(one, CommonTrial)
        assert one.work.asked_tokens == other.work.asked_tokens
        assert one.work.requests >= 0.6 * whole.work.requests
    ttft = next(row for row in compared(run).comparisons if row.metric == "ttft_p50_s")
    assert ttft.ratio is not None
    assert ttft.ratio.centre == pytest.approx(1 / 1.3, rel=0.05)
