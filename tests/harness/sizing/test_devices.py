"""The plan on one GPU: worked numbers of memory, floors, critical batch, cost and energy; table, JSON and page."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

import bakeoff
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.sizing.calibration import Calibration, Prediction
from bakeoff.harness.sizing.device import DevicePlan
from bakeoff.harness.sizing.gpus import gpu_table
from bakeoff.harness.sizing.model import known_models, load_model
from bakeoff.harness.sizing.page import write_page
from bakeoff.harness.sizing.plan import Plan
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from bakeoff.harness.sizing.step_times import Efficiency, StepTimes, StepWork
from tests.test_imports import ROOT

GIB = 2**30


def device(model: str = "llama-3.1-8b", **options: object) -> DevicePlan:
    return bakeoff.plan(model, **{"gpu": "h200", **options}).devices[0]


@pytest.fixture(scope="module")
def h200() -> DevicePlan:
    return device(price=3.6)


def test_memory_adds_up(h200: DevicePlan):
    memory = h200.memory
    assert memory.weights == 2 * 8_030_261_248
    assert memory.usable == 0.9 * 150_754_820_096
    activations = 8192 * (3 * 4096 + 3 * 14336) * 2
    assert memory.workspace == activations + 256 * 128_256 * 4
    assert memory.for_kv == memory.usable - memory.weights - memory.workspace - memory.runtime
    assert h200.fitting[8192] == int(memory.for_kv / (8192 * 131_072)) == 109


def test_floors_are_the_weights_over_the_bandwidth_and_the_products_over_their_rate(h200: DevicePlan):
    read = 2 * (8_030_261_248 - 128_256 * 4096) + 1153 * 131_072
    assert h200.itl_floor_s == pytest.approx(read / (4.8e12 * 0.931))
    flops = 2 * 1024 * 6_979_588_096 + 2 * 128_256 * 4096 + 4 * 4096 * 32 * 1024 * 1025 / 2
    assert h200.ttft_floor_s == pytest.approx(flops / (989.4e12 * 0.685), rel=1e-3)


def test_the_critical_batch_is_where_products_take_as_long_as_weights(h200: DevicePlan):
    """2 bytes and 2 operations a weight and row: the batch is products over bytes per second, 678 / 4.47 = 152."""
    assert h200.critical_batch == math.ceil(989.4e12 * 0.685 / (4.8e12 * 0.931)) == 152
    assert h200.critical_batch_at_context is None
    assert device("llama-3.1-8b", input_tokens=16, output_tokens=16).critical_batch_at_context == pytest.approx(
        154, abs=6
    )


def test_int4_turns_compute_bound_earlier_and_fp8_later_than_int8():
    batches = {name: device(precision=name).critical_batch or 0 for name in ("int4", "int8", "fp8", "bf16")}
    assert batches["int4"] < batches["int8"] < batches["bf16"]
    assert batches["fp8"] == pytest.approx(batches["bf16"], rel=0.1)


def test_fewer_bits_gain_less_than_their_bytes():
    """Measured with vLLM, alone on an H200 (docs/quantisation.md): fp8 1.45 times bf16, int4 1.31 times."""
    alone = {name: device(precision=name).batches[0].itl_p50_s for name in ("bf16", "fp8", "int4")}
    assert alone["bf16"] / alone["fp8"] == pytest.approx(1.45, rel=0.05)
    assert alone["bf16"] / alone["int4"] == pytest.approx(1.31, rel=0.05)
    floors = {name: device(precision=name).itl_floor_s for name in ("bf16", "int4")}
    assert floors["bf16"] / floors["int4"] > 3


def step_s(precision: str, decodes: int, adapter: str = "vllm") -> float:
    costs = load_model("llama-3.1-8b").costs(PRECISIONS[precision], CACHES["bf16"])
    efficiency = Efficiency(0.8, 0.9, adapter=adapter)
    return StepTimes(StepWork(costs), gpu_table()["h200"], PRECISIONS[precision], efficiency).seconds(decodes, 0)


def test_conversion_of_stored_weights_adds_their_operations_to_their_bytes():
    operations = 2 * 63 * (8_030_261_248 - 128_256 * 4096) / (0.9 * 989.4e12 * 0.685)
    assert step_s("bf16", 64) == pytest.approx(step_s("bf16", 1), rel=1e-3)
    assert step_s("int8", 64) - step_s("int8", 1) == pytest.approx(operations, rel=5e-3)


def test_fp8_without_products_in_8_bits_is_converted_like_int8():
    ttft = {name: device(gpu="a100-80gb", precision=name).batches[0].ttft_p50_s for name in ("bf16", "int8", "fp8")}
    assert ttft["bf16"] < ttft["fp8"] == pytest.approx(ttft["int8"], rel=0.05)


def test_each_engine_reads_4_bits_at_its_own_share():
    assert step_s("int4", 1, "reference") < 0.8 * step_s("int4", 1, "vllm") == step_s("int4", 1, "sglang") * 0.8
    assert step_s("int8", 1, "reference") == step_s("int8", 1, "vllm")


def test_a_larger_batch_brings_more_tokens_for_less_and_each_of_them_later(h200: DevicePlan):
    rows = h200.batches
    assert [row.batch for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for row, larger in pairwise(rows):
        assert larger.output_tokens_per_s > row.output_tokens_per_s
        assert larger.itl_p50_s > row.itl_p50_s
        assert larger.energy_per_output_token_j < row.energy_per_output_token_j
    for row in rows:
        assert row.itl_p50_s > row.itl_floor_s
        assert row.energy_per_output_token_j == pytest.approx(700 / row.output_tokens_per_s)


def test_costs_of_input_and_output_are_the_price_of_a_second(h200: DevicePlan):
    """3.6 an hour are 0.001 a second."""
    for row in h200.batches:
        a_request = 1024 * row.cost_per_million_input + 256 * row.cost_per_million_output
        assert a_request / 1e6 == pytest.approx(0.001 / row.requests_per_s)


def test_the_first_token_comes_from_the_prompts_step():
    one, two = (device(price={"": 3.6}, output_tokens=tokens).batches[0] for tokens in (1, 2))
    assert one.cost_per_million_output == 0
    assert two.cost_per_million_output * 2 / 1e6 == pytest.approx(0.001 * two.itl_p50_s, rel=0.01)


def test_cached_tokens_cost_less_and_are_billed_less():
    plain, cached = (
        device(price={"": 3.6}, cached_share=share, cached_discount=0.9).batches[3] for share in (0.0, 0.5)
    )
    assert cached.cost_per_million_input < 0.7 * plain.cost_per_million_input
    assert plain.list_price_per_million_input == plain.cost_per_million_input
    assert cached.list_price_per_million_input == pytest.approx(cached.cost_per_million_input / (1 - 0.5 * 0.9))
    assert cached.ttft_p50_s < plain.ttft_p50_s


def test_a_model_takes_the_fewest_gpus_that_hold_it():
    assert [device("llama-3.1-70b", gpu=[gpu]).ranks for gpu in ("mi300x", "h200", "h100", "a100-40gb")] == [1, 2, 2, 4]
    assert [device("deepseek-v3", gpu=[gpu], precision="fp8").ranks for gpu in ("h200", "h100")] == [8, 8]
    assert "79.7 GiB on each GPU, 71.7" in (device("deepseek-v3", gpu=["h100"], precision="fp8").why_not or "")
    hopeless = device("llama-3.1-70b", gpu=["a10g"], tensor_parallel=2)
    assert hopeless.batches == []
    assert "one request needs" in (hopeless.why_not or "")


def test_copies_of_the_kv_cache_are_counted_where_there_are_more_gpus_than_heads():
    two, eight = (device("qwen3-30b-a3b", tensor_parallel=ranks).memory for ranks in (2, 8))
    assert two.kv_per_token == 98_304 / 2
    assert eight.kv_per_token == 98_304 / 4


def test_what_one_request_needs_counts_windows():
    """Gemma 3 12B with 100,000 tokens: 8 of 48 layers keep them all, the others 1,024."""
    refused = device("gemma-3-12b", gpu=["a10g"], tensor_parallel=1, input_tokens=99_000, output_tokens=1_000)
    memory = refused.memory
    kv_bytes = 393_216 * (8 * 100_000 + 40 * 1024) / 48
    needed = (memory.weights + memory.workspace + memory.runtime + kv_bytes) / GIB
    assert f"one request needs {needed:.1f} GiB" in (refused.why_not or "")


def test_floors_read_the_copies_of_the_kv_cache_too():
    """4 key/value heads on 8 GPUs: each reads an eighth of the weights, but a quarter of the cache."""
    eight = device("qwen3-30b-a3b", tensor_parallel=8, input_tokens=32_000, output_tokens=2)
    costs = load_model("qwen3-30b-a3b").costs(PRECISIONS["bf16"], CACHES["bf16"])
    weights = costs.decode(1, 0).bytes - 98_304
    assert eight.itl_floor_s == pytest.approx((weights / 8 + 32_002 * 98_304 / 4) / (4.8e12 * 0.931))


def test_a_smaller_kv_cache_fits_more_sequences():
    wide, narrow = device().fitting[8192], device(kv="fp8").fitting[8192]
    assert narrow == pytest.approx(2 * wide, abs=1)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return bakeoff.plan(
        "llama-3.1-8b", gpu=["h200"], tensor_parallel=1, slo="ttft_p90<500ms", rate=5.0, price={"": 2.0}
    )


def run(*arguments: str) -> int:
    return guarded(make_app(), ["plan", *arguments])


def test_one_gpu_is_printed_in_full(capsys: pytest.CaptureFixture[str]):
    assert run("llama-3.1-8b", "--gpu", "h200", "--input", "1024", "--output", "256") == 0
    text = capsys.readouterr().out
    assert "8.03 G parameters; 15.0 GiB in bf16" in text
    assert "128.0 KiB a token: 32 layers × 2 × 8 heads × 128 elements (GQA)" in text
    assert "floors: TTFT 21.5 ms, ITL 3.39 ms" in text
    assert "batch 152 with an empty context, no batch with these requests" in text
    assert "vLLM 0.24 on an H200" in text


def test_several_gpus_are_one_line_each_and_the_slo_has_its_table(capsys: pytest.CaptureFixture[str]):
    arguments = ("llama-3.1-70b", "--gpu", "h200", "--gpu", "l40s", "--tensor-parallel", "2", "--slo", "ttft_p90<900ms")
    assert run(*arguments, "--slo", "itl_p90<60ms", "--rate", "1", "--price", "h200=3.5") == 0
    text = capsys.readouterr().out
    assert "ttft_p90<900ms, itl_p90<60ms at 1 requests/s" in text
    assert "l40s × 2 does not fit" in text
    assert "price/h" in text


def test_json_has_the_whole_plan(capsys: pytest.CaptureFixture[str]):
    assert run("smollm2-135m", "--gpu", "a10g", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model"]["parameters"] == 134_515_008
    assert plan["devices"][0]["gpu"]["name"] == "a10g"
    assert plan["sizing"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "is neither a config.json nor a known model"),
        (["smollm2-135m", "--gpu", "h300"], "unknown GPU 'h300'"),
        (["smollm2-135m", "--precision", "int3"], "unknown precision 'int3'"),
        (["llama-2-7b", "--input", "4000"], "requests of 4,256 tokens exceed the 4,096 of llama-2-7b"),
        (["smollm2-135m", "--slo", "ttft_p90<1s"], "--slo and --rate belong together"),
        (["smollm2-135m", "--gpu", "h200", "--from-run", "/nowhere"], "/nowhere"),
        (["smollm2-135m", "--seed=-1"], "--seed must be at least 0"),
        (["smollm2-135m", "--price", "inf"], "--price must be above 0, and finite"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


FITTED = Calibration(
    "vllm",
    "a run",
    Efficiency(0.8, 0.9, 5e-4, 2e-5, 9e-3),
    1.5e9,
    is_prediction=True,
    predictions=[
        Prediction(load, metric, value, 1.02 * value)
        for load, tpot_s, rate in (("c=1", 0.005, 190.0), ("c=8", 0.006, 1200.0))
        for metric, value in (("tpot_p50_s", tpot_s), ("output_tokens_per_s", rate), ("memory", 137e9))
    ],
)


def test_the_page_is_complete_and_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bakeoff.harness.sizing.plan.calibrate", lambda fitter, engine: FITTED)
    path = tmp_path / "plan.html"
    run_folder = ROOT / "docs/results/h200-bakeoff"
    arguments = ("--gpu", "h200", "--from-run", str(run_folder), "--engine", "vllm", "--out", str(path))
    assert run("llama-3.1-8b", *arguments) == 0
    text = capsys.readouterr().out
    assert "vllm in a run: 80 % of the bandwidth, 90 % of the products, 500 µs a step" in text
    assert "+2.0 %" in text
    assert "runtime 0.6 GiB" in text, "memory outside the engine's share of the GPU is not the runtime's"
    page = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") == 4  # memory, frontier, ITL, and predicted beside measured
    assert {"64 sequences", "predicted", "measured", "NVIDIA H200 datasheet"} <= set(re.split(r"[<>]|\d+: ", page))
    assert "each load is predicted by a fit to the others" in page


def test_memory_beside_the_model_on_a_cpu_is_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bakeoff.harness.sizing.plan.calibrate", lambda fitter, engine: FITTED)
    machine = tmp_path / "machine.json"
    machine.write_text(
        json.dumps(
            [
                {
                    "device": "cpu",
                    "name": "x",
                    "memory_bytes": 64_000_000_000,
                    "read_bytes_per_s": 1e10,
                    "flops_per_s": {"float32": 1e11},
                }
            ]
        )
    )
    run_folder = ROOT / "docs/results/h200-bakeoff"
    plan = bakeoff.plan("llama-3.1-8b", gpu="cpu", machine=machine, from_run=run_folder, engine="vllm")
    assert plan.devices[0].memory.runtime == FITTED.fixed_bytes


def test_a_model_with_one_context_has_a_page(tmp_path: Path):
    raw = known_models()["smollm2-135m"] | {"max_position_embeddings": 256}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    short = bakeoff.plan(str(tmp_path), gpu="h200", input_tokens=200, output_tokens=56, sequences=4)
    assert list(short.devices[0].fitting) == [256]
    write_page(short, tmp_path / "plan.html")


def test_the_page_begins_with_the_answer(plan: Plan, tmp_path: Path):
    write_page(plan, tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "1 × h200 keeps ttft_p90&lt;500ms at 5 requests/s, at 2 an hour." in page
    assert "GPUs that keep the SLO" in page


def test_a_window_lets_more_sequences_run_than_whole_contexts_would():
    """Of Gemma 3's 48 layers 40 keep 1,024 tokens: 32,768 take 8/48 of the cache, and a little."""
    gemma = device("gemma-3-12b", gpu=["h200"], input_tokens=32_000, output_tokens=768)
    whole = gemma.memory.for_kv / (32_768 * gemma.memory.kv_per_token)
    sequence_bytes = 393_216 * (8 * 32_768 + 40 * 1024) / 48
    assert gemma.fitting[32_768] == int(gemma.memory.for_kv / sequence_bytes) > 4 * whole
    assert gemma.batches[-1].batch == gemma.fitting[32_768]
    assert gemma.batches[-1].ttft_p50_s < 60
