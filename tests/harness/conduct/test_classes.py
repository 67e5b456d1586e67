"""Two classes on a server with known service times: every class's figures are those, and its requests carry its own."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bakeoff import results
from bakeoff.engines import Deployment, dialect
from bakeoff.engines.errors import BadOption
from bakeoff.engines.request_shape import RequestShape, reshaped
from bakeoff.harness.client.wire.plan import OfClass, wire_sessions
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_run
from bakeoff.results.compare.comparability import difference
from bakeoff.results.compare.primary import primary_load
from bakeoff.results.records import Slo
from bakeoff.results.report import render_html
from bakeoff.results.report.class_figures import bounds_of, fairness_lines, interference_lines
from bakeoff.results.run.groups import by_class, fairness, interference
from bakeoff.workloads import PlannedSession, Session, Turn
from bakeoff.workloads.errors import UnknownWorkload

TTFT_S, TOKEN_S = 0.1, 0.01
SHORT, LONG = 5, 41
E2E_S = {"short": TTFT_S + (SHORT - 1) * TOKEN_S, "long": TTFT_S + (LONG - 1) * TOKEN_S}
"""0.14 and 0.5 seconds."""


def a_class(name: str, tokens: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": tokens}},
        **changes,
    }


CLASSES = [
    a_class("short", SHORT, weight=3, slo={"e2e_s": 0.2}),
    a_class("long", LONG, slo={"e2e_s": 0.3, "ttft_s": 0.2}, model="lora-long"),
]


def experiment(classes: list[dict[str, Any]] = CLASSES, **changes: Any) -> Experiment:
    data = {
        "name": "c", "engines": [{"adapter": "reference", "label": "a"}], "classes": classes,
        "loads": [{"rate_per_s": 20, "arrival": "poisson"}], "trial": {"warm_up_s": 0.0, "duration_s": 20},
        "quality": {"samples": 0}, **changes,
    }  # fmt: skip
    return experiment_from(data, "c")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> results.Run:
    engine = VirtualEngine(service=PerToken(Fixed(TTFT_S), Fixed(TOKEN_S)))
    return virtual_run(experiment(), {"a": engine}, tmp_path_factory.mktemp("classes"))


def test_figures_of_each_class_are_its_service_times(run: results.Run):
    groups = by_class(run)
    assert [group.name for group in groups] == ["short", "long"]
    for group in groups:
        assert group.metrics["e2e_p50_s"].value == pytest.approx(E2E_S[group.name], abs=1e-6)
        assert group.metrics["ttft_p50_s"].value == pytest.approx(TTFT_S, abs=1e-6)
        assert group.metrics["tpot_p50_s"].value == pytest.approx(TOKEN_S, abs=1e-6)
        assert group.failed == 0
    window_s = sum(trial.window.length_s for trial in run.finished)
    inside = [request for trial in run.finished for request in trial.inside]
    for group in groups:
        own = [request for request in inside if request.traffic_class == group.name]
        assert group.requests == len(own)
        assert group.output_tokens == sum(request.total_chunk_tokens for request in own)
        assert {request.requested_output_tokens for request in own} == {{"short": SHORT, "long": LONG}[group.name]}
    short, long = groups
    assert (short.metrics["attainment"].value, long.metrics["attainment"].value) == (1.0, 0.0)
    assert short.goodput_per_s == pytest.approx(short.requests / window_s)
    assert long.goodput_per_s == 0.0
    assert short.requests / len(inside) == pytest.approx(0.75, abs=0.05)


def test_fairness_is_jains_index_and_the_worst_class_is_named(run: results.Run):
    (found,) = fairness(run, by_class(run))
    assert (found.index, found.worst, found.attainment) == (0.5, "long", 0.0), "(1 + 0)² / (2 · (1 + 0))"
    assert fairness_lines([found]) == ["poisson 20/s, a: fairness 0.500; worst class long, 0 % met its SLO"]
    assert bounds_of(run) == ["class short: E2E ≤ 200 ms", "class long: TTFT ≤ 200 ms, E2E ≤ 300 ms"]


def test_fairness_is_unknown_if_a_class_has_no_request_or_none_met_its_slo(run: results.Run):
    short, long = by_class(run)
    (found,) = fairness(run, [short])
    assert (found.index, found.missing) == (None, ["long"])
    assert fairness_lines([found])[0].endswith("no request of long was planned inside the windows")
    lost = msgspec.structs.replace(short, metrics=short.metrics | {"attainment": long.metrics["attainment"]})
    (found,) = fairness(run, [lost, long])
    assert (found.index, fairness_lines([found])[0].endswith("no request met its SLO")) == (None, True)


def test_the_warm_up_has_every_class_and_a_class_that_an_engine_cannot_take_is_named(tmp_path: Path):
    rare = {"name": "rare", "weight": 1e-6, "workload": {"name": "embeddings"}, "request": {"temperature": 0.5}}
    with pytest.raises(BadExperiment, match=r"class 'rare': engine 'a': .*no field for temperature"):
        virtual_run(experiment([a_class("short", SHORT), rare]), {"a": VirtualEngine()}, tmp_path)


def test_the_notes_say_what_requests_of_a_class_carry(tmp_path: Path):
    made = experiment([a_class("a", 5, request={"body": {"priority": 2}}), a_class("b", 5)])
    run = virtual_run(made, {"a": VirtualEngine()}, tmp_path)
    assert "class a: requests carry priority 2" in run.manifest.notes


def test_the_report_has_the_classes(run: results.Run):
    page = render_html(run)
    assert 'id="classes"' in page
    assert "worst class long" in page


def test_a_class_has_its_own_model(run: results.Run):
    models = {(request.traffic_class, request.model) for trial in run.finished for request in trial.inside}
    assert models == {("short", None), ("long", "lora-long")}


def test_a_class_without_an_slo_has_that_of_the_experiment(tmp_path: Path):
    made = experiment([a_class("a", 5), a_class("b", 5, slo={"ttft_s": 0.1})], slo={"ttft_s": 9.0})
    assert (made.slo_of_class("a"), made.slo_of_class("b")) == (Slo(ttft_s=9.0), Slo(ttft_s=0.1))
    run = virtual_run(made, {"a": VirtualEngine()}, tmp_path)
    assert run.manifest.classes == {"a": Slo(ttft_s=9.0), "b": Slo(ttft_s=0.1)}


def test_requests_of_a_class_carry_its_fields_and_headers():
    engine = reshaped(dialect("vllm", {}, Deployment()), RequestShape(body={"top_k": 3}, headers={"X-Tenant": "all"}))
    own = reshaped(engine, RequestShape(body={"priority": 2}, headers={"X-Tenant": "gold"}))
    turn = Turn(8, 5, prompt="eight words")
    sessions = [
        PlannedSession(Session(f"s{k}", (turn,), traffic_class=name), None) for k, name in enumerate(("gold", ""))
    ]
    gold, plain = wire_sessions(sessions, engine, "base", classes={"gold": OfClass(own, "lora")})
    assert (gold.traffic_class, gold.model, plain.traffic_class, plain.model) == ("gold", "lora", None, None)
    assert [each.turns[0].request.headers["x-tenant"] for each in (gold, plain)] == ["gold", "all"]
    of_gold, of_plain = (each.turns[0].body.rest for each in (gold, plain))
    assert b'"priority":2' in of_gold
    assert b'"priority"' not in of_plain
    assert b'"top_k":3' in of_gold
    assert b'"top_k":3' in of_plain


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workload": {"name": "chat"}}, "leave out workload"),
        ({"classes": [a_class("a", 5), a_class("a", 6)]}, "same name"),
        ({"classes": [a_class("a b", 5)]}, "the name of a class"),
        ({"classes": [a_class("a", 5, weight=0)]}, "Expected `float` > 0"),
        ({"classes": [a_class("a", 5, slo={"ttft_s": -1})]}, "each bound of slo"),
        ({"rules": "mlperf-endpoints"}, "rules 'steady' alone"),
        ({"loads": [{"arrival": "workload"}]}, "no arrivals of a workload"),
        ({"classes": [a_class("a", 5, wait=1)]}, "wait"),
    ],
)
def test_a_contradiction_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(BadExperiment, match=said):
        experiment(**changes)


def test_what_no_request_of_a_class_can_carry_is_refused_before_anything_starts():
    with pytest.raises(BadOption, match="no_such_field"):
        experiment([a_class("a", 5), a_class("b", 5, request={"omit": ["no_such_field"]})])


def test_runs_whose_classes_carry_other_fields_are_not_compared(run: results.Run, tmp_path: Path):
    other = experiment([CLASSES[0], CLASSES[1] | {"model": "lora-other"}])
    engine = VirtualEngine(service=PerToken(Fixed(TTFT_S), Fixed(TOKEN_S)))
    changed = virtual_run(other, {"a": engine}, tmp_path)
    assert difference([run.manifest, run.manifest]) is None
    assert (difference([run.manifest, changed.manifest]) or "").startswith("classes (")


def test_a_stored_experiment_with_classes_is_read_again():
    made = experiment()
    assert experiment_from(msgspec.to_builtins(made), "again") == made


def test_interference_is_a_class_among_the_others_over_it_alone(tmp_path: Path):
    """One request at a time, a quarter of 0.5 s and the rest of 0.14 s: mean waits by Pollaczek and Khinchine."""
    rates: list[dict[str, Any]] = [
        {"rate_per_s": 2.4},
        {"rate_per_s": 1.8, "only": "short"},
        {"rate_per_s": 0.6, "only": "long"},
    ]
    loads = [rate | {"arrival": "poisson"} for rate in rates]
    made = experiment(loads=loads, repeats=3, trial={"warm_up_s": 0.0, "duration_s": 200, "max_window_s": 2000})
    engine = VirtualEngine(service=PerToken(Fixed(TTFT_S), Fixed(TOKEN_S)), slots=1)
    run = virtual_run(made, {"a": engine}, tmp_path)
    assert [trial.record.workload for trial in run.finished[:3]] == ["classes", "short", "long"]
    alone = [trial for trial in run.finished if trial.record.load.only == "short"]
    assert {name for trial in alone for name in trial.inside.values("traffic_class")} == {"short"}
    found = interference(run)
    assert [(each.level, each.name) for each in found] == [
        ("classes · poisson 2.4/s", "short"),
        ("classes · poisson 2.4/s", "long"),
    ]
    medians: dict[tuple[str | None, int], float] = {}
    waits_s: dict[str | None, list[float]] = {None: [], "short": []}
    for trial in run.finished:
        e2e_s = [(r.ended_ns - r.planned_ns) / 1e9 for r in trial.inside if r.traffic_class == "short"]
        if e2e_s:
            medians[trial.record.load.only, trial.record.repeat] = float(np.median(e2e_s))
            waits_s[trial.record.load.only] += [each - E2E_S["short"] for each in e2e_s]
    logs = [np.log(medians[None, repeat] / medians["short", repeat]) for repeat in (1, 2, 3)]
    assert found[0].ratios["e2e_p50_s"].centre == pytest.approx(np.exp(np.mean(logs)), rel=1e-6)
    for name in ("short", "long"):
        together, single = (
            [
                (round((r.planned_ns - trial.window.start_ns) / 1e9, 6), r.requested_output_tokens)
                for trial in run.finished
                if trial.record.load.only == only and trial.record.repeat == 1
                for r in trial.inside
                if r.traffic_class == name
            ]
            for only in (None, name)
        )
        both_until_s = min(trial.window.length_s for trial in run.finished)
        assert [each for each in together if each[0] < both_until_s] == [
            each for each in single if each[0] < both_until_s
        ]
    squares = {None: 0.75 * E2E_S["short"] ** 2 + 0.25 * E2E_S["long"] ** 2, "short": E2E_S["short"] ** 2}
    busy = {None: 2.4 * (0.75 * E2E_S["short"] + 0.25 * E2E_S["long"]), "short": 1.8 * E2E_S["short"]}
    for only, rate in ((None, 2.4), ("short", 1.8)):
        assert np.mean(waits_s[only]) == pytest.approx(rate * squares[only] / (2 * (1 - busy[only])), rel=0.25)
    (line, _) = interference_lines(found)
    assert line.startswith("classes · poisson 2.4/s, a: short among the others: TTFT p50 ")
    assert line.endswith(" of alone")
    assert len(fairness(run, by_class(run))) == 1, "a class alone has no other to be fair to"
    assert primary_load(load for load in made.loads[::-1]) == made.loads[0]


def test_only_names_a_class_beside_a_load_of_all():
    with pytest.raises(BadExperiment, match="only = 'gold', which is no class"):
        experiment(loads=[{"concurrency": 2}, {"concurrency": 1, "only": "gold"}])
    with pytest.raises(BadExperiment, match="every load is of one class alone"):
        experiment(loads=[{"concurrency": 1, "only": "short"}])


@pytest.mark.parametrize("arrival", ["poisson", "constant", "gamma"])
def test_a_class_without_others_has_no_interference(tmp_path: Path, arrival: str):
    """Near saturation the draw of the arrivals decides the latencies, so both loads must have the same one."""
    loads = [{"rate_per_s": 4.0, "arrival": arrival}, {"rate_per_s": 4.0, "arrival": arrival, "only": "short"}]
    made = experiment(CLASSES[:1], loads=loads, repeats=2, trial={"warm_up_s": 0.0, "duration_s": 30})
    engine = VirtualEngine(service=PerToken(Fixed(TTFT_S), Fixed(TOKEN_S)), slots=1)
    (found,) = interference(virtual_run(made, {"a": engine}, tmp_path))
    assert {name: ratio.centre for name, ratio in found.ratios.items()} == {
        "ttft_p50_s": pytest.approx(1.0, abs=1e-6), "e2e_p50_s": pytest.approx(1.0, abs=1e-6),
    }  # fmt: skip


def starts_of(run: results.Run, name: str) -> list[float]:
    """When sessions of a class inside the window of the first trial were planned, in seconds."""
    trial = run.finished[0]
    inside = (request for request in trial.inside if request.traffic_class == name)
    return [request.planned_ns / 1e9 for request in sorted(inside, key=lambda request: request.planned_ns)]


def test_a_class_comes_by_its_own_process_at_its_share_of_the_rate_whatever_the_others_do(tmp_path: Path):
    def of(path: str, **others: Any) -> results.Run:
        clock = a_class("clock", SHORT, arrival="constant")
        made = experiment([clock, a_class("other", SHORT, weight=3, **others)], repeats=1)
        return virtual_run(made, {"a": VirtualEngine()}, tmp_path / path)

    run, bursty = of("a"), of("b", arrival="gamma", arrival_options={"burstiness": 0.1})
    assert np.diff(starts_of(run, "clock")) == pytest.approx(1 / 5, abs=1e-6)
    assert np.diff(starts_of(bursty, "clock")) == pytest.approx(1 / 5, abs=1e-6)
    gaps, clumped = np.diff(starts_of(run, "other")), np.diff(starts_of(bursty, "other"))
    assert gaps.mean() == pytest.approx(1 / 15, rel=0.2)
    assert clumped.std() / clumped.mean() > 2 * gaps.std() / gaps.mean() > 1.4, "1/√0.1 against 1"


def test_a_class_with_arrivals_of_its_own_comes_at_the_same_times_alone(tmp_path: Path):
    classes = [a_class("clock", SHORT, arrival="gamma", arrival_options={"burstiness": 0.5}), a_class("b", LONG)]
    loads = [{"rate_per_s": 20, "arrival": "poisson"}, {"rate_per_s": 10, "arrival": "poisson", "only": "clock"}]
    run = virtual_run(experiment(classes, loads=loads, repeats=1), {"a": VirtualEngine()}, tmp_path)
    together, alone = (
        [request.planned_ns - trial.window.start_ns for request in trial.inside if request.traffic_class == "clock"]
        for trial in run.finished
    )
    assert together == pytest.approx(alone, abs=2)


@pytest.mark.parametrize(
    ("changes", "loads", "message"),
    [
        ({"arrival": "constant"}, [{"concurrency": 4}], "need an open loop of one rate; give each load"),
        ({"arrival": "constant"}, [{"rate_per_s": 5, "arrival": "ramp"}], "need an open loop of one rate"),
        ({"arrival": "diurnal"}, None, "a class cannot have the arrival 'diurnal', which has no steady rate"),
        ({"arrival": "workload"}, None, "a class cannot have the arrival 'workload'"),
        ({"arrival_options": {"burstiness": 2}}, None, "arrival_options of a class belong to its arrival"),
    ],
)
def test_arrivals_of_a_class_that_cannot_be_are_refused(
    changes: dict[str, Any], loads: list[dict[str, Any]] | None, message: str
):
    given = {} if loads is None else {"loads": loads}
    with pytest.raises(BadExperiment, match=message):
        experiment([a_class("a", SHORT, **changes), a_class("b", LONG)], **given)


def test_an_unknown_arrival_of_a_class_is_named():
    with pytest.raises(UnknownWorkload, match="unknown arrival process 'gama'; did you mean 'gamma'"):
        experiment([a_class("a", SHORT, arrival="gama"), a_class("b", LONG)])


def test_evenly_spaced_arrivals_of_several_classes_do_not_coincide(tmp_path: Path):
    classes = [a_class(name, SHORT, arrival="constant") for name in ("a", "b", "c")]
    run = virtual_run(experiment(classes, repeats=1), {"a": VirtualEngine()}, tmp_path)
    firsts = [starts_of(run, name)[0] for name in ("a", "b", "c")]
    assert min(abs(one - other) for one, other in itertools.combinations(firsts, 2)) > 0.001
