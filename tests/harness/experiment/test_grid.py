"""Grids over settings: an engine for each combination, whose effects are those that its service times have."""

import io
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from, loaded_experiment
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, virtual_run
from bakeoff.results.report import print_grid, render_html
from bakeoff.results.run.grid import GridReport, best_metric, grid_effects, ranking

SEATS, BATCH = "spec.max_num_seqs", "spec.max_num_batched_tokens"
TTFT_S, TOKEN_S = {16: 0.4, 64: 0.1}, {64: 0.02, 512: 0.01}
"""Seconds to the first token by seats, and of each other token by batch."""


def experiment(grid: Any, **changes: Any) -> Experiment:
    data = {
        "name": "g", "engines": [{"adapter": "reference", "label": "own", "grid": grid}],
        "loads": [{"concurrency": 2}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 21}},
        "trial": {"warm_up_s": 0.0, "duration_s": 10}, "quality": {"samples": 0}, **changes,
    }  # fmt: skip
    return experiment_from(data, "g")


def test_each_combination_is_an_engine():
    made = experiment({SEATS: [16, 64], "options.block_size": [8, 16]}, spec={"dtype": "float32"})
    assert [engine.name for engine in made.engines] == [
        "own-max_num_seqs-16-block_size-8", "own-max_num_seqs-16-block_size-16",
        "own-max_num_seqs-64-block_size-8", "own-max_num_seqs-64-block_size-16",
    ]  # fmt: skip
    last = made.engines[-1]
    assert (made.spec_of(last).max_num_seqs, made.spec_of(last).dtype, last.options) == (
        64,
        "float32",
        {"block_size": 16},
    )
    assert last.point is not None
    assert (last.point.base, last.point.values) == ("own", {SEATS: 64, "options.block_size": 16})
    assert len(made.plan()) == 4 * 3


def test_a_stored_experiment_is_read_as_the_same_engines():
    made = experiment({SEATS: [16, 64]})
    assert experiment_from(msgspec.to_builtins(made), "again") == made


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ([16], "is no table"),
        ({"max_num_seqs": [16]}, "'max_num_seqs', which is not in spec, options, request, env"),
        ({"args.x": [16]}, "not in spec"),
        ({SEATS: 16}, "no list of values"),
        ({SEATS: []}, "no list of values"),
        ({SEATS: [16, 16]}, "twice"),
        ({"request.temperature": [1, 1.0]}, "twice"),
        ({"env.HF_TOKEN": ["a", "b"]}, "would be written into labels"),
        ({"env.X": ["x" * 200, "y"]}, "too long"),
        ({SEATS: [[16]]}, "no number, text or truth value"),
        ({SEATS: list(range(1, 20)), BATCH: list(range(1, 20))}, "361 combinations"),
        ({SEATS: ["many"]}, "Expected `int"),
        ({"spec.max_num_seq": [1]}, "max_num_seqs"),
    ],
)
def test_a_malformed_grid_is_refused(grid: Any, said: str):
    with pytest.raises(BadExperiment, match=said):
        experiment(grid)


def test_two_grids_need_names_of_their_own_and_tables_are_tables():
    engines = [{"adapter": "reference", "grid": {SEATS: [1, 2]}}, {"adapter": "reference", "grid": {BATCH: [64, 128]}}]
    with pytest.raises(BadExperiment, match="two engines with a grid are called 'reference'; set label"):
        experiment({}, engines=engines)
    with pytest.raises(BadExperiment, match="spec of engine 'reference' is no table"):
        experiment({}, engines=[{"adapter": "reference", "spec": 3, "grid": {SEATS: [1, 2]}}])


def test_a_grid_of_the_python_api_becomes_engines_too():
    plain = experiment({})
    with_grid = msgspec.structs.replace(plain.engines[0], grid={SEATS: [16, 64]})
    made = loaded_experiment(msgspec.structs.replace(plain, engines=[with_grid]))
    assert [engine.name for engine in made.engines] == ["own-max_num_seqs-16", "own-max_num_seqs-64"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> results.Run:
    made = experiment({SEATS: [16, 64], BATCH: [64, 512]}, slo={"ttft_s": 0.2})
    engines = {
        engine.name: VirtualEngine(
            service=PerToken(
                Fixed(TTFT_S[engine.point.values[SEATS]] if engine.point else 1.0),
                Fixed(TOKEN_S[engine.point.values[BATCH]] if engine.point else 1.0),
            )
        )
        for engine in made.engines
    }
    return virtual_run(made, engines, tmp_path_factory.mktemp("grid"))


def test_effects_are_those_of_the_service_times(run: results.Run):
    """TTFT differs fourfold with the seats alone, TPOT twofold with the batch alone: half of it in logs each way."""
    ttft, tpot = grid_effects(run, ["ttft_p50_s", "tpot_p50_s"])
    assert [effect.size.centre for effect in ttft.effects[:2]] == pytest.approx([math.log(2), -math.log(2)], rel=0.01)
    assert [effect.size.centre for effect in ttft.effects[2:4]] == pytest.approx([0, 0], abs=0.01)
    assert [effect.size.centre for effect in tpot.effects[:2]] == pytest.approx([0, 0], abs=0.01)
    assert [effect.size.centre for effect in tpot.effects[2:4]] == pytest.approx(
        [math.log(2) / 2, -math.log(2) / 2], rel=0.01
    )
    assert ttft.effects[0].share == pytest.approx(1, abs=0.01)
    assert ttft.effects[-1].size.centre == pytest.approx(0, abs=0.01)


def test_settings_are_ranked_by_goodput_and_those_that_miss_the_slo_are_last(run: results.Run):
    """At TTFT 0.1 s an answer takes 0.3 or 0.5 s, so two users get 6.7 or 4 a second; at 0.4 s none meets the SLO."""
    assert best_metric(run) == "goodput_per_s"
    ranked = ranking(run, "goodput_per_s")
    assert [tuple(each.values.values()) for each in ranked[:2]] == [(64, 512), (64, 64)]
    assert [each.value.centre for each in ranked] == pytest.approx([2 / 0.3, 2 / 0.5, 0, 0], rel=0.05, abs=0)
    assert (ranked[0].behind, ranked[1].is_close) == (None, False)
    assert ranked[2].behind is None, "0 has no ratio"


def test_tables_say_it(run: results.Run):
    console = Console(file=io.StringIO(), width=120)
    print_grid(
        GridReport("goodput_per_s", ranking(run, "goodput_per_s"), grid_effects(run, ["goodput_per_s", "tpot_p50_s"])),
        console,
    )
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "Settings of own by goodput, 4 measured" in text
    assert "+41.4 %" in text, "a TPOT of 20 ms beside the geometric mean of 10 and 20"
    assert "a value is 0, which has no ratio" in text
    page = render_html(run)
    assert 'id="settings"' in page
    assert "max_num_seqs × max_num_batched_tokens" in page


def test_a_run_without_a_grid_has_no_settings(tmp_path: Path):
    made = experiment({})
    engines = {"own": VirtualEngine()}
    run = virtual_run(made, engines, tmp_path)
    assert (ranking(run, "ttft_p50_s"), grid_effects(run, ["ttft_p50_s"])) == ([], [])
    assert 'id="settings"' not in render_html(run)
