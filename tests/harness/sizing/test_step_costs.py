"""Costs of recorded steps, worked out by hand from a small model, and the reasons where there are none."""

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from bakeoff.harness.sizing.device import critical_batch as planned_batch
from bakeoff.harness.sizing.device import is_compute_bound
from bakeoff.harness.sizing.model import Machine, load_model
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from bakeoff.harness.sizing.step_costs import trial_costs
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.quantization_names import MethodName
from bakeoff.results.attribution.roofline import Ceiling, critical_batch
from bakeoff.results.log.step_costs import TrialCosts
from bakeoff.results.log.step_log import ChunkRecord, EngineEvent, RequestQueued, StepRecord
from bakeoff.results.records import EngineDescription

TINY = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LAYERS = 2 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 12 + 2 * 8) + 8
HEAD, KV, PAIR = 100 * 8, 32, 2 * 2 * 4 * 2 * 2
"""Weights of the output matrix; bytes of a cached token in bfloat16; operations of a pair of tokens in all layers."""
SETTINGS = dataclasses.asdict(EngineConfig(model="", dtype="bfloat16", device="cpu"))
"""As the reference engine's ``/version`` gives them."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return tmp_path


def log(*steps: list[ChunkRecord]) -> list[EngineEvent]:
    queued = [RequestQueued(0, "a", 20, 0, 0), RequestQueued(1, "b", 20, 0, 0)]
    return [*queued, *(StepRecord(i, i, i, i + 1, chunks, [], 1, 0, 1) for i, chunks in enumerate(steps))]


LOG = log(
    [ChunkRecord(0, 0, 12, 0, 0)],
    [ChunkRecord(0, 12, 8, 0, 1)],
    [ChunkRecord(0, 20, 1, 0, 1), ChunkRecord(1, 0, 20, 0, 1)],
    [ChunkRecord(0, 21, 1, 0, 1), ChunkRecord(1, 20, 1, 0, 1)],
    [],
)


def counted(model: Path, **changes: Any) -> TrialCosts:
    settings = {**SETTINGS, "model": str(model), **changes}
    assert set(settings) == set(SETTINGS)
    return trial_costs(EngineDescription("e", "reference", details={"config": settings}), [LOG])


def test_bytes_and_operations_of_each_step(model: Path):
    costs = counted(model)
    assert costs.missing is None
    (steps,) = costs.steps
    weights = 2 * (LAYERS + HEAD)
    assert [step.bytes for step in steps] == [
        2 * LAYERS + 12 * KV, weights + 20 * KV, weights + 21 * KV + 20 * KV, weights + 22 * KV + 21 * KV, 0.0,
    ]  # fmt: skip
    pairs = [sum(range(1, 13)), sum(range(13, 21)), 21 + sum(range(1, 21)), 22 + 21]
    assert [step.flops for step in steps] == [
        2 * LAYERS * tokens + 2 * HEAD * rows + PAIR * pairs_seen
        for tokens, rows, pairs_seen in zip([12, 8, 21, 2, 0], [0, 1, 2, 2, 0], [*pairs, 0], strict=True)
    ]
    assert (costs.device, costs.dtype, costs.devices) == ("cpu", "bfloat16", 1)
    assert costs.context_tokens == (20 + 21 + 20) / 3


def test_a_dropped_token_of_a_gpu_has_taken_the_output_matrix(model: Path):
    """A step is launched before the one in flight shows that a request has ended."""
    settings = {**SETTINGS, "model": str(model), "device": "cuda"}
    described = EngineDescription("e", "reference", details={"config": settings})
    kept, dropped = (
        trial_costs(described, [log([ChunkRecord(0, 21, 1, 0, output_tokens)])]).steps[0][0] for output_tokens in (1, 0)
    )
    assert dropped == kept
    assert dropped.bytes == 2 * (LAYERS + HEAD) + 22 * KV


@pytest.mark.parametrize(
    ("settings", "dtype", "devices", "weight_bytes"),
    [
        ({"dtype": "float32"}, "float32", 1, 4),
        ({"quantization": "none", "tensor_parallel_size": 2}, "bfloat16", 1, 2),
        ({"device": "cuda", "tensor_parallel_size": 2}, "bfloat16", 2, 2),
        ({"device": "cuda", "quantization": "int8"}, "bfloat16", 1, 1),
        ({"device": "cuda", "quantization": "fp8"}, "float8_e4m3fn", 1, 1),
        ({"quantization": "fp8"}, "bfloat16", 1, 1),
    ],
)
def test_precision_and_device_follow_from_the_settings(
    model: Path, settings: dict[str, Any], dtype: str, devices: int, weight_bytes: int
):
    costs = counted(model, **settings)
    assert (costs.missing, costs.dtype, costs.devices) == (None, dtype, devices)
    kv = KV * (2 if settings.get("dtype") == "float32" else 1)
    assert costs.steps[0][0].bytes == pytest.approx(weight_bytes * LAYERS + 12 * kv)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"attention_window": 64}, "a window that the model does not have"),
        ({"ablation": "slow:0.1,heavy_hitter:64:32"}, "an evicting KV cache"),
        ({"cpu_offload_gb": 1.0}, "weights in host memory"),
        ({"speculation": "draft:3:folder"}, "a draft model"),
        ({"quantization": "llm-int8"}, "weights in llm-int8"),
        ({"kv_cache_dtype": "odd"}, "a KV cache in odd"),
    ],
)
def test_what_is_not_modelled_is_named(model: Path, settings: dict[str, Any], reason: str):
    assert reason in (counted(model, **settings).missing or "")


def test_each_method_of_quantisation_has_costs_or_a_reason(model: Path):
    methods = [name for method in get_args(MethodName) for name in (get_args(method) or (method,))]
    reasons = {name: counted(model, quantization=name).missing for name in methods}
    assert {name for name, missing in reasons.items() if missing is None} == {
        "int8", "int4", "int4-zp", "fp8", "w8a8", "nf4", "mxfp4",
    }  # fmt: skip
    assert all(
        missing == f"the bytes of weights in {name} are not modelled" for name, missing in reasons.items() if missing
    )


def test_other_unknowns_are_named(model: Path):
    (model / "config.json").write_text(json.dumps({**TINY, "quantization_config": {"bits": 4}}), encoding="utf-8")
    assert "the checkpoint keeps quantised" in (counted(model).missing or "")
    assert "neither a config.json nor a known model" in (counted(Path("nowhere")).missing or "")
    assert "GGUF" in (counted(Path("model.gguf")).missing or "")
    for described in (None, EngineDescription("e", "vllm")):
        assert "does not say which model" in (trial_costs(described, [LOG]).missing or "")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "smollm2-135m"])
def test_the_critical_batch_is_that_of_the_plan(name: str):
    costs = load_model(name).costs(PRECISIONS["bf16"], CACHES["bf16"])
    ceiling = Ceiling("cuda:0", "GPU", 1, "bfloat16", 4.47e12, 678e12)
    settings = {**SETTINGS, "model": name}
    logged = trial_costs(EngineDescription("e", "reference", details={"config": settings}), [LOG])
    machine = Machine(ceiling.bytes_per_s, ceiling.flops_per_s)
    expected = planned_batch(lambda batch: is_compute_bound(costs, machine, batch, round(logged.context_tokens)))
    assert expected is not None
    assert critical_batch(logged.decode, ceiling) == expected
