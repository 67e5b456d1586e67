"""Conditions that must be equal for two runs to be compared, and a digest to find comparable runs.

GPUs count as equal if model, memory and driver are; serial numbers do not matter.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bakeoff.results.log.run_log import Manifest
from bakeoff.results.metrics.catalogue import COMPARABLE
from bakeoff.results.records import TrialRecord
from bakeoff.results.views.llmd_format import STATED

_GIB = 1024**3
_GPU = ("name", "memory_bytes", "driver")
_UNSTATED = ("timeout_s", 120.0)
"""What every run of earlier versions left out of its log, stated or not, since it was the default at any window."""
_CLIENT = ("transport", "workers", "ray")


def conditions(manifest: Manifest) -> dict[str, Any]:
    """Return every condition by name; settings left at their default are omitted.

    Traffic and weights belong to trials: see :class:`Series`.
    """
    machine, experiment = manifest.environment, manifest.experiment
    memory_bytes = machine.get("memory_bytes")
    client, quality = (_table(experiment, name) for name in ("client", "quality"))
    return {
        **_table(experiment, STATED),
        "rules": experiment.get("rules"),
        "workload.history": _table(experiment, "workload").get("history"),
        "cpu": machine.get("cpu"),
        "cores": machine.get("cores"),
        "memory_gib": round(memory_bytes / _GIB) if memory_bytes else None,  # what the kernel reserves varies
        "gpus": [{name: gpu.get(name) for name in _GPU} for gpu in machine.get("gpus") or []] or None,
        **{f"trial.{name}": value for name, value in _table(experiment, "trial").items() if (name, value) != _UNSTATED},
        **{f"client.{name}": client[name] for name in _CLIENT if name in client},
        **({"quality.logprobs": True} if quality.get("logprobs") else {}),
        **{f"slo.{name}": value for name, value in msgspec.to_builtins(manifest.slo).items()},
        # Their workloads and weights are in the traffic; what their requests carry, and their SLOs, are not.
        **({"classes": classes} if (classes := experiment.get("classes")) else {}),
        "faults": [_fault_text(fault) for fault in experiment.get("faults") or []] or None,
        "metric definitions": COMPARABLE,
    }


def _fault_text(fault: Mapping[str, Any]) -> str:
    """``restart at 20 s for 5 s``: which replica it befalls and by which commands depends on the deployment."""
    values = {name: fault[name] for name in ("at_s", "for_s", "share") if name in fault}
    return " ".join([fault["action"], *(f"{name}={value:g}" for name, value in values.items())])


def digest(manifest: Manifest) -> str:
    """Return the SHA-256 of the conditions, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(conditions(manifest), order="sorted")).hexdigest()


def difference(manifests: Iterable[Manifest]) -> str | None:
    """Return the first condition that differs, with two of its values; None if all are equal."""
    first, *others = map(conditions, manifests)
    for other in others:
        for name in dict.fromkeys((*first, *other)):
            left, right = first.get(name), other.get(name)
            if left != right:
                return f"{name} ({_text(left)} and {_text(right)})"
    return None


class Series(msgspec.Struct, frozen=True, array_like=True):
    """Key of trials whose figures differ by noise alone.

    Attributes:
        adapter: of the engine; its label is the user's choice and does not count.
        level: label of the load.
        workload: name of the workload.
        traffic_sha256: digest of what was sent, see :func:`sent_sha256`.
        weights_sha256: digest of the model weights; empty if the engine does not report it.
        conditions_sha256: digest of the run's conditions, see :func:`digest`.
    """

    adapter: str
    level: str
    workload: str
    traffic_sha256: str
    weights_sha256: str
    conditions_sha256: str


def series_of(manifest: Manifest, record: TrialRecord) -> Series:
    """Return the series of a trial."""
    described = record.engine_description
    return Series(
        described.adapter if described else "",
        record.load.label,
        record.workload,
        sent_sha256(record),
        (described.model_sha256 or "") if described else "",
        digest(manifest),
    )


def sent_sha256(record: TrialRecord) -> str:
    """Digest of what a trial sent: the workload's traffic, and what its requests carried besides."""
    request = request_of(record)
    if not request:
        return record.workload_sha256
    return hashlib.sha256(msgspec.json.encode([record.workload_sha256, request], order="sorted")).hexdigest()


def request_of(record: TrialRecord) -> dict[str, Any]:
    """What the trial's requests carried besides the workload's prompt and length; empty for the default."""
    return record.engine_description.request if record.engine_description else {}


def request_difference(records: Iterable[TrialRecord]) -> str | None:
    """Return the first setting of requests that differs, with two of its values; None if all are equal."""
    first, *others = map(request_of, records)
    for other in others:
        for name in dict.fromkeys((*first, *other)):
            if first.get(name) != other.get(name):
                return f"request.{name} ({_text(first.get(name))} and {_text(other.get(name))})"
    return None


def _table(experiment: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = experiment.get(name)
    return table if isinstance(table, dict) else {}


def _text(value: object) -> str:
    return "unset" if value is None else str(value)
