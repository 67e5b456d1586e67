"""Bytes and operations of recorded steps, by the cost model of ``bakeoff plan``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.model import Chunk, ModelCosts, load_model
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS, CachePrecision, Precision
from bakeoff.results.attribution.steps import is_decode
from bakeoff.results.log.step_costs import BatchCost, StepCost, TrialCosts
from bakeoff.results.log.step_log import EngineEvent, RequestQueued, StepRecord
from bakeoff.results.records import EngineDescription

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_COMPUTE = {"fp8": "float8_e4m3fn", "int8": "int8"}
"""torch's names of the types in which a GPU multiplies 8-bit activations."""
_STORED = ("auto", "stored")
"""Values of ``quantization`` that leave a quantised checkpoint unchanged."""
_PLAIN = (*_STORED, "none")
_NOT_COUNTED = {
    "attention_window": "a window that the model does not have",
    "cpu_offload_gb": "weights in host memory",
}
"""Settings of the reference engine that change what a step reads, with the feature that each switches on."""
_BATCHES = tuple(1 << power for power in range(17))


def trial_costs(description: EngineDescription | None, logs: Sequence[Sequence[EngineEvent]]) -> TrialCosts:
    """Count the costs of a profiled trial.

    Args:
        description: of the engine; its details contain the settings in the form of the reference engine's ``/version``.
        logs: the step log of each engine process.

    Returns:
        The costs, or why they are unknown.
    """
    config = description.details.get("config") if description else None
    if not isinstance(config, dict) or "model" not in config:
        return TrialCosts(missing="the engine does not say which model it serves in which precision")
    try:
        costs, dtype = _model_costs(config)
    except BadPlan as error:
        return TrialCosts(missing=str(error))
    queued = [{event.number: event for event in log if isinstance(event, RequestQueued)} for log in logs]
    context = _mean_context(logs, queued)
    batches = [(batch, costs.decode(batch, round(context))) for batch in _BATCHES]
    return TrialCosts(
        device=str(config.get("device")),
        dtype=dtype,
        devices=int(config.get("tensor_parallel_size") or 1) if config.get("device") == "cuda" else 1,
        steps=[
            [_step_cost(costs, event, of_log) for event in log if isinstance(event, StepRecord)]
            for log, of_log in zip(logs, queued, strict=True)
        ],
        context_tokens=context,
        decode=[BatchCost(batch, step.bytes, step.flops) for batch, step in batches],
    )


def _step_cost(costs: ModelCosts, record: StepRecord, queued: Mapping[int, RequestQueued]) -> StepCost:
    """Costs of one recorded step. Logits are counted for one row of each sequence, even with drafts."""
    # A GPU has computed logits for a request that ended in the step before, though their token is dropped.
    chunks = [
        Chunk(
            chunk.new_tokens,
            chunk.past_tokens,
            is_sampled=chunk.output_tokens > 0 or is_decode(chunk, queued[chunk.request]),
        )
        for chunk in record.chunks
        if chunk.new_tokens
    ]
    if not chunks:
        return StepCost(0.0, 0.0)
    step = costs.step(chunks)
    return StepCost(step.bytes, step.flops)


def _model_costs(config: Mapping[str, Any]) -> tuple[ModelCosts, str]:
    """Costs of the served model, and the data type of its products.

    Raises:
        BadPlan: they cannot be counted; the message says why.
    """
    for name, meaning in _NOT_COUNTED.items():
        if config.get(name):
            raise BadPlan(f"bytes and operations with {meaning} ({name}) are not modelled")
    if "heavy_hitter" in str(config.get("ablation")):
        raise BadPlan("bytes and operations with an evicting KV cache (ablation heavy_hitter) are not modelled")
    speculation = str(config.get("speculation") or "ngram")
    if not speculation.startswith("ngram"):
        raise BadPlan(f"bytes and operations of a draft model ({speculation.partition(':')[0]}) are not modelled")
    folder, dtype = str(config.get("model")), str(config.get("dtype"))
    if folder.endswith(".gguf"):
        raise BadPlan("the bytes of weights in GGUF files are not modelled")
    model = load_model(folder)
    precision = _precision(str(config.get("quantization")), dtype, Path(folder))
    costs = model.costs(precision, _cache(str(config.get("kv_cache_dtype")), dtype))
    on_gpu = config.get("device") == "cuda"
    return costs, _COMPUTE.get(precision.compute, dtype) if on_gpu else dtype


def _precision(quantization: str, dtype: str, folder: Path) -> Precision:
    name = _DTYPES.get(dtype, dtype) if quantization in _PLAIN else quantization
    if name not in PRECISIONS or dtype not in _DTYPES:
        raise BadPlan(f"the bytes of weights in {name} are not modelled")
    if quantization in _STORED and _is_quantised(folder / "config.json"):
        raise BadPlan("the bytes of weights that the checkpoint keeps quantised are not modelled")
    return PRECISIONS[name]


def _is_quantised(path: Path) -> bool:
    return path.is_file() and "quantization_config" in json.loads(path.read_bytes())


def _cache(kind: str, dtype: str) -> CachePrecision:
    """The cache's precision; both 16-bit formats take the same bytes."""
    name = ("fp32" if dtype == "float32" else "bf16") if kind == "auto" else kind
    if name not in CACHES:
        raise BadPlan(f"the bytes of a KV cache in {name} are not modelled")
    return CACHES[name]


def _mean_context(logs: Sequence[Sequence[EngineEvent]], queued: Sequence[Mapping[int, RequestQueued]]) -> float:
    """Mean tokens in the cache of a decoding sequence; 0 if none decoded.

    Args:
        logs: as for :func:`trial_costs`.
        queued: the requests of each log by their number in steps.
    """
    total = count = 0
    for log, of_log in zip(logs, queued, strict=True):
        for record in log:
            if isinstance(record, StepRecord):
                past = [chunk.past_tokens for chunk in record.chunks if is_decode(chunk, of_log[chunk.request])]
                total, count = total + sum(past), count + len(past)
    return total / count if count else 0.0
