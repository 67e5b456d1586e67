"""A fit finds the efficiency that made the figures, and predicts loads that it has not seen."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import bakeoff
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.calibration import Calibration, Fitter, calibrate, predict, simulated
from bakeoff.harness.sizing.gpus import gpu_table
from bakeoff.harness.sizing.measured import Load, MeasuredEngine, measured_engines
from bakeoff.harness.sizing.model import load_model
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from bakeoff.harness.sizing.server import Limits, Request
from bakeoff.harness.sizing.step_times import Efficiency
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld
from bakeoff.results.errors import RunUnreadable
from tests.test_imports import ROOT

TRUE = Efficiency(0.7, 0.6, 5e-4, 2e-5, 8e-3, 7e-5, 3e-3)
MIX = [Request(200 + 137 * i % 1500, 40 + 53 * i % 300) for i in range(120)]


def test_a_run_of_another_model_is_refused(fitter: Fitter) -> None:
    engine = msgspec.structs.replace(planted(fitter, 1, 8), model="llama-8b-shapes")
    large = Fitter(load_model("llama-3.1-70b"), PRECISIONS["bf16"], CACHES["bf16"], gpu_table()["h200"])
    assert calibrate(fitter, engine).engine == "planted"
    with pytest.raises(BadPlan, match=r"served 'llama-8b-shapes' in a run, which tells nothing about llama-3\.1-70b"):
        calibrate(large, engine)
    with pytest.raises(BadPlan, match=r"faster in a run than h200 can read the weights of llama-3\.1-70b"):
        calibrate(large, msgspec.structs.replace(engine, model="mine"))


@pytest.fixture(scope="module")
def fitter() -> Fitter:
    return Fitter(load_model("llama-3.1-8b"), PRECISIONS["bf16"], CACHES["bf16"], gpu_table()["h200"])


def planted(
    fitter: Fitter, *concurrency: int, memory_bytes: float | None = None, efficiency: Efficiency = TRUE
) -> MeasuredEngine:
    """An engine whose measured loads follow exactly from an efficiency."""
    engine = MeasuredEngine("planted", "a run", [], Limits(plans_ahead=True), 0.9, None)
    loads: list[Load] = []
    for slots in concurrency:
        load = Load(f"c={slots}", slots, MIX, {})
        measured = simulated(load, fitter.served(engine, load, efficiency))
        loads.append(
            msgspec.structs.replace(
                load, measured=measured | ({"peak_gpu_bytes": memory_bytes} if memory_bytes else {})
            )
        )
    return msgspec.structs.replace(engine, loads=loads)


@pytest.fixture(scope="module")
def calibration(fitter: Fitter) -> Calibration:
    return calibrate(fitter, planted(fitter, 1, 8, 32, memory_bytes=0.9 * 150_754_820_096 + 1e9))


def test_a_fit_finds_the_efficiency_that_made_the_figures(calibration: Calibration):
    assert calibration.efficiency.bytes_share == pytest.approx(TRUE.bytes_share, rel=0.05)
    assert calibration.efficiency.flops_share == pytest.approx(TRUE.flops_share, rel=0.05)
    assert calibration.efficiency.request_s == pytest.approx(TRUE.request_s, rel=0.3)


def test_a_calibration_in_4_bits_finds_any_share_of_the_bandwidth():
    """The plan's share for 4 bits, 0.43, is no bound."""
    true = msgspec.structs.replace(TRUE, bytes_share=0.9, precision="int4")
    fitter = Fitter(load_model("llama-3.1-8b"), PRECISIONS["int4"], CACHES["bf16"], gpu_table()["h200"])
    engine = planted(fitter, 1, 8, 32, efficiency=true)
    fit = fitter.efficiency(engine, engine.loads)
    assert fit.bytes_share > 0.6
    assert fitter.times(fit).seconds(8, 512) == pytest.approx(fitter.times(true).seconds(8, 512), rel=0.04)


def test_each_load_is_predicted_by_the_others(calibration: Calibration):
    assert calibration.is_prediction
    errors = {(prediction.load, prediction.metric): abs(prediction.error) for prediction in calibration.predictions}
    assert {load for load, _ in errors} == {"c=1", "c=8", "c=32"}
    assert max(errors[load, "ttft_p50_s"] for load in ("c=1", "c=8", "c=32")) < 0.08
    assert max(error for (_, metric), error in errors.items() if metric != "ttft_p50_s") < 0.05


def test_memory_beside_the_model_is_fitted_too(calibration: Calibration):
    assert calibration.fixed_bytes == pytest.approx(1e9)
    memory = [prediction for prediction in calibration.predictions if prediction.metric == "memory"]
    assert [prediction.error for prediction in memory] == pytest.approx([0.0] * 3)


def test_two_loads_are_fitted_and_reported_as_not_predicted(fitter: Fitter):
    calibration = calibrate(fitter, planted(fitter, 1, 8))
    assert not calibration.is_prediction
    assert calibration.fixed_bytes is None
    assert max(abs(prediction.error) for prediction in calibration.predictions) < 0.05


class Recorded(Fitter):
    """Fits nothing; records the loads that it was given."""

    def efficiency(self, engine: MeasuredEngine, loads: Sequence[Load], start: Efficiency | None = None) -> Efficiency:
        self.fitted_loads: list[list[str]] = [*getattr(self, "fitted_loads", []), [load.label for load in loads]]
        return TRUE


def test_no_load_is_part_of_its_own_prediction():
    fitter = Recorded(load_model("llama-3.1-8b"), PRECISIONS["bf16"], CACHES["bf16"], gpu_table()["h200"])
    calibrate(fitter, planted(fitter, 1, 8, 32))
    assert fitter.fitted_loads == [["c=1", "c=8", "c=32"], ["c=8", "c=32"], ["c=1", "c=32"], ["c=1", "c=8"]]


def test_a_published_run_is_read_with_its_settings():
    engines = {engine.engine: engine for engine in measured_engines(ROOT / "docs/results/h200-bakeoff")}
    vllm = engines["vllm"]
    assert vllm.limits == Limits(sequences=256, step_tokens=8192, plans_ahead=True)
    assert vllm.memory_fraction == 0.9
    assert [load.label for load in vllm.loads] == ["c=1", "c=8", "c=64", "poisson 10/s"]
    assert [load.concurrency for load in vllm.loads] == [1, 8, 64, None]
    first = vllm.loads[0]
    assert first.measured["itl_p50_s"] == pytest.approx(0.00499, rel=1e-2)
    assert first.requests[0].arrival_s == 0
    assert 0 < first.requests[0].cached_tokens < 0.05 * first.requests[0].prompt_tokens


def test_a_run_on_two_gpus_is_predicted_with_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_run(tmp_path, [trial("a", "VALID", 0.01)])
    with (tmp_path / "experiment.toml").open("a") as file:
        file.write('spec = { tensor_parallel_size = 2 }\nengines = [{ adapter = "vllm", label = "e" }]\n')
    fitters: list[Fitter] = []

    def calibrated(fitter: Fitter, engine: MeasuredEngine) -> Calibration:
        fitters.append(fitter)
        return Calibration(engine.engine, engine.run, TRUE, None, is_prediction=False, predictions=[])

    monkeypatch.setattr("bakeoff.harness.sizing.plan.calibrate", calibrated)
    bakeoff.plan("llama-3.1-8b", gpu="h200", from_run=tmp_path)
    bf16 = PRECISIONS["bf16"], CACHES["bf16"]
    two = Fitter(load_model("llama-3.1-8b"), *bf16, gpu_table()["h200"], 2)
    assert fitters[0].times(TRUE).seconds(8, 512) == two.times(TRUE).seconds(8, 512)
    with pytest.raises(BadPlan, match="ran on 2 GPUs, but h200 has no link"):
        Fitter(
            load_model("llama-3.1-8b"), *bf16, msgspec.structs.replace(gpu_table()["h200"], link_bytes_per_s=None), 2
        )


def test_a_run_with_pipeline_parallelism_is_refused(tmp_path: Path):
    write_run(tmp_path, [trial("a", "VALID", 0.01)])
    with (tmp_path / "experiment.toml").open("a") as file:
        file.write('spec = { pipeline_parallel_size = 2 }\nengines = [{ adapter = "vllm", label = "e" }]\n')
    with pytest.raises(BadPlan, match="e ran with pipeline parallelism in"):
        bakeoff.plan("llama-3.1-8b", gpu="h200", from_run=tmp_path)


def test_servers_that_share_a_gpu_have_no_memory_of_their_own():
    engines = measured_engines(ROOT / "docs/results/h200-served-random")
    assert {engine.why_no_memory for engine in engines} == {"it ran at an address, beside others"}


def test_vllm_on_an_h200_is_predicted_at_a_load_that_it_was_not_fitted_to(fitter: Fitter):
    """docs/results/h200-bakeoff: 8 users from 1 and 64 users."""
    engine = next(engine for engine in measured_engines(ROOT / "docs/results/h200-bakeoff") if engine.engine == "vllm")
    fit = fitter.efficiency(engine, [engine.loads[0], engine.loads[2]])
    errors = {
        prediction.metric: prediction.error for prediction in predict(fitter, engine, engine.loads[1], fit, 1.5e9)
    }
    assert abs(errors["itl_p50_s"]) < 0.05
    assert abs(errors["tpot_p50_s"]) < 0.05
    assert abs(errors["output_tokens_per_s"]) < 0.05
    assert abs(errors["ttft_p50_s"]) < 0.15
    assert abs(errors["memory"]) < 0.03


def test_invalid_trials_count_for_nothing_and_none_valid_is_refused(tmp_path: Path):
    write_run(tmp_path, [trial("a", "VALID", 0.01), trial("b", "INVALID", 9.0), trial("c", "VALID", 0.02)])
    load = measured_engines(tmp_path)[0].loads[0]
    assert load.measured["itl_p50_s"] == pytest.approx(0.015)
    assert load.spread["itl_p50_s"] == pytest.approx(0.01 / 0.015)
    assert len(load.requests) == 300
    assert set(load.requests) == {Request(10, 3)}
    write_run(tmp_path, [trial("b", "INVALID", 9.0)])
    with pytest.raises(BadPlan, match="has no VALID trial"):
        measured_engines(tmp_path)


@pytest.mark.parametrize(
    ("file", "column"), [("trials", "engine"), ("trials", "verdict"), ("requests", "trial"), ("requests", "planned_ns")]
)
def test_a_missing_column_is_named(tmp_path: Path, file: str, column: str):
    write_run(tmp_path, [trial("a", "VALID", 0.01)])
    path = tmp_path / f"{file}.csv"
    path.write_text(path.read_text().replace(column, "other"))
    with pytest.raises(RunUnreadable, match=rf"{file}\.csv has no column {column}; export the run again"):
        measured_engines(tmp_path)


def test_a_text_in_place_of_a_number_is_named(tmp_path: Path):
    write_run(tmp_path, [trial("a", "VALID", 0.01) | {"itl_p50_s": "fast"}])
    with pytest.raises(BadPlan, match="itl_p50_s of trial a is 'fast', not a number"):
        measured_engines(tmp_path)


def test_cached_tokens_are_each_requests_own_or_the_share_of_the_trial_that_hit_least(tmp_path: Path):
    """A later trial's ramp repeats prompts that an earlier trial left in the cache, so its counter is too high."""
    trials = [trial("a", "VALID", 0.01) | {"server_prefix_hit_share": 0.1}]
    trials.append(trial("b", "VALID", 0.01) | {"load": "c=8", "server_prefix_hit_share": 0.5})
    write_run(tmp_path, trials)
    assert [load.requests[0].cached_tokens for load in measured_engines(tmp_path)[0].loads] == [1, 1]
    write_run(tmp_path, trials, cached_tokens=4)
    assert [load.requests[0].cached_tokens for load in measured_engines(tmp_path)[0].loads] == [4, 4]
    write_run(tmp_path, trials, cached_tokens=0)
    assert [load.requests[0].cached_tokens for load in measured_engines(tmp_path)[0].loads] == [0, 0]


@pytest.mark.parametrize(("place", "on_gpu"), [("", False), ('url = "http://a"', None), ('ssh = { host = "a" }', None)])
def test_only_an_engine_that_ran_here_without_gpu_memory_ran_on_a_cpu(tmp_path: Path, place: str, on_gpu: bool | None):
    write_run(tmp_path, [trial("a", "VALID", 0.01)])
    (tmp_path / "experiment.toml").write_text(f'[[engines]]\nadapter = "vllm"\nlabel = "e"\n{place}\n')
    assert [engine.on_gpu for engine in measured_engines(tmp_path)] == [on_gpu]
    write_run(tmp_path, [trial("a", "VALID", 0.01) | {"peak_gpu_bytes": 1e9}])
    assert [engine.on_gpu for engine in measured_engines(tmp_path)] == [True]


def test_an_engine_that_ran_on_another_kind_of_device_is_refused(fitter: Fitter):
    smol = load_model("smollm2-135m"), PRECISIONS["bf16"], CACHES["bf16"]
    on_cpu = Fitter(*smol, msgspec.structs.replace(gpu_table()["h200"], name="cpu"))
    engine = MeasuredEngine("e", "runs/x", [], Limits(), None, None, on_gpu=False)
    with pytest.raises(BadPlan, match=r"^e ran without a GPU in runs/x, .* h200; give a run on a GPU, or --gpu cpu"):
        calibrate(fitter, engine)
    with pytest.raises(BadPlan, match=r"^e ran on a GPU in runs/x, .*; give a run without GPUs, or the GPU with --gpu"):
        calibrate(on_cpu, msgspec.structs.replace(engine, on_gpu=True))


def test_a_figure_of_0_is_refused(tmp_path: Path, fitter: Fitter):
    write_run(tmp_path, [trial("a", "VALID", 0.0), trial("b", "VALID", 0.0)])
    (engine,) = measured_engines(tmp_path)
    with pytest.raises(BadPlan, match="itl_p50_s of e at c=2 is 0, which no step time explains; give a run"):
        calibrate(fitter, msgspec.structs.replace(engine, on_gpu=None))


def test_a_limit_of_requests_in_flight_is_read_from_the_label(tmp_path: Path):
    write_run(tmp_path, [trial("a", "VALID", 0.01) | {"load": "poisson 50/s ≤16"}])
    (load,) = measured_engines(tmp_path)[0].loads
    assert (load.concurrency, load.max_in_flight) == (None, 16)


def test_a_run_folder_is_read_like_a_published_run(tmp_path: Path):
    """The virtual engine's model cannot be planned for, so this checks only what was sent and measured."""
    experiment = {
        "name": "t",
        "repeats": 1,
        "engines": [{"adapter": "openai", "label": "a", "url": "http://a"}],
        "spec": {"max_num_seqs": 7},
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 4}],
        "trial": {"ramp_s": 1.0, "duration_s": 20.0, "warm_up_s": 0.0},
        "client": {"calibrate": False},
        "quality": {"samples": 0},
    }
    with inside(VirtualWorld({"a": VirtualEngine()})):
        run = bakeoff.run(experiment, out=tmp_path)
    (engine,) = measured_engines(run.path)
    assert (engine.engine, engine.limits) == ("a", Limits(step_tokens=512)), "a running server has its own settings"
    (load,) = engine.loads
    assert load.concurrency == 4
    sent = len(run.all_requests[run.all_requests.phase == "measured"])
    assert len(load.requests) % sent == 0
    assert {(request.prompt_tokens, request.output_tokens) for request in load.requests} == {(8, 5)}
    assert load.measured["itl_p50_s"] == run.trials.itl_p50_s[0]


def test_a_run_without_token_counts_is_refused(fitter: Fitter):
    engine = MeasuredEngine("e", "runs/x", [Load("c=1", 1, [], {})], Limits(), None, None)
    with pytest.raises(BadPlan, match="runs/x has no requests of e with token counts"):
        calibrate(fitter, engine)


def trial(name: str, verdict: str, itl_s: float) -> dict[str, object]:
    return {"trial": name, "engine": "e", "load": "c=2", "verdict": verdict, "itl_p50_s": itl_s, "ttft_p50_s": ""}


def write_run(folder: Path, trials: list[dict[str, object]], **sent: float) -> None:
    fields = {"planned_ns": 5, "prompt_tokens": 10.0, "output_tokens": 3.0, **sent}
    requests = [{"trial": row["trial"], **fields} for row in trials]
    requests.append({"trial": trials[0]["trial"], **fields, "planned_ns": 6, "output_tokens": ""})
    for name, rows in (("trials", trials), ("requests", requests)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    (folder / "experiment.toml").write_text(f"name = {json.dumps('t')}\n")
