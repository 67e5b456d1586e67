"""Fingerprints of trials: trials with equal fingerprints are the same measurement, so a finished one can be reused.

The fingerprint covers everything that is known before an engine starts and can change a trial's figures: the engine and
its settings, the builds of engine and harness, the model's bytes, the traffic's lengths and times, the trial's limits,
the client and this machine. It leaves out labels, ports, the other engines, goodput bounds, prices, and whether answers
are checked afterwards. Secrets are masked before hashing.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.engines import Engine, Model
from bakeoff.engines.base import SupportsBuild
from bakeoff.engines.build import checkout
from bakeoff.engines.errors import NotInstalled
from bakeoff.engines.secrets import masked_data
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.host.environment import VERSION
from bakeoff.results.records import Slo, TrialPlan

_NOT_MEASURED = ("label", "port", "prices", "point")


def fingerprint(
    experiment: Experiment,
    model: Model,
    plan: TrialPlan,
    *,
    build: dict[str, Any],
    traffic_sha256: str,
    machine: dict[str, Any],
) -> str:
    """SHA-256 in hexadecimal over everything that can change a trial's figures.

    Args:
        experiment: that the trial belongs to.
        model: that the engine serves.
        plan: of the trial.
        build: from :func:`build_of_engine`.
        traffic_sha256: over the lengths, order and times of the requests.
        machine: from :func:`bakeoff.harness.host.environment.machine`.
    """
    engine = experiment.engine(plan.engine)
    config: dict[str, Any] = msgspec.to_builtins(engine)
    facts = {
        "engine": {name: value for name, value in config.items() if name not in _NOT_MEASURED},
        "spec": msgspec.to_builtins(experiment.spec_of(engine)),
        "request": msgspec.to_builtins(experiment.request_of(engine)),
        "build": build,
        "bakeoff": _own_build(),
        "model": [model.name, model.sha256],
        "workload": msgspec.to_builtins(experiment.workload),
        **({"classes": _of_traffic(experiment)} if experiment.classes else {}),
        **({"faults": msgspec.to_builtins(faults)} if (faults := experiment.faults_of(engine)) else {}),
        "rules": msgspec.to_builtins(experiment.rules_of_play),
        "traffic": traffic_sha256,
        "load": msgspec.to_builtins(plan.load),
        "repeat": plan.repeat,
        "profiled": plan.profiled,
        "seed": experiment.seed,
        "trial": msgspec.to_builtins(experiment.trial),
        "logprobs": experiment.quality.samples if experiment.quality.logprobs else 0,
        "client": msgspec.to_builtins(experiment.client),
        "machine": machine,
    }
    return hashlib.sha256(msgspec.json.encode(masked_data(facts), order="sorted")).hexdigest()


def _of_traffic(experiment: Experiment) -> list[Any]:
    """The classes without their SLOs."""
    return [msgspec.to_builtins(msgspec.structs.replace(each, slo=Slo())) for each in experiment.classes]


def build_of_engine(engine: Engine) -> dict[str, Any]:
    """The engine build that a launch would run: versions, commits or hashes.

    Empty if unknown: for running servers, over SSH, for engines that are not installed, and for third-party adapters
    without :class:`~bakeoff.engines.base.SupportsBuild`.
    """
    try:
        return engine.build() if isinstance(engine, SupportsBuild) else {}
    except NotInstalled:
        return {}


@functools.cache
def _own_build() -> list[str | None]:
    """The harness's own version and commit; cached, because the loaded code does not change with the checkout."""
    return [VERSION, checkout(Path(__file__).resolve().parents[2])]
