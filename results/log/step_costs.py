"""Bytes and operations of the steps of a profiled trial, counted from the model's shapes when the trial ended.

They follow from the step log and the engine's description; :mod:`bakeoff.harness.sizing.step_costs` counts them,
because this package knows no model.
"""

from typing import NamedTuple

import msgspec

from bakeoff.results.schema import SCHEMA_VERSION


class StepCost(NamedTuple):
    """One step: memory traffic in bytes, and operations; a multiplication and an addition are two."""

    bytes: float
    flops: float


class BatchCost(NamedTuple):
    """One decode step of ``batch`` sequences with the trial's mean context."""

    batch: int
    bytes: float
    flops: float


class TrialCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a profiled trial.

    Attributes:
        schema_version: of the file.
        missing: why the costs are unknown; None if they are known.
        device: kind that computed: ``cpu`` or ``cuda``.
        dtype: data type of the products, by torch's name.
        devices: number that computed each step together (tensor parallelism).
        steps: of each engine process, in the order of its step log.
        context_tokens: mean tokens in the cache of a decoding sequence.
        decode: costs of decode steps by ascending batch, in powers of two.
    """

    schema_version: int = SCHEMA_VERSION
    missing: str | None = None
    device: str = ""
    dtype: str = ""
    devices: int = 1
    steps: list[list[StepCost]] = []
    context_tokens: float = 0.0
    decode: list[BatchCost] = []
