"""What makes two trials the same measurement: then one that is finished need not be run again.

A fingerprint is over all that the harness decides or can know before an engine starts: the engine and everything that
it is told, the installed package, the model's bytes, the traffic's lengths and times, the limits of the trial, the
client, and this machine. It leaves out what does not touch the figures of the trial: labels, ports, the other engines,
bounds for goodput, and whether answers are checked afterwards. Secrets are masked before they are hashed.
"""

import hashlib
from typing import Any

import msgspec

from engines import Engine, Model
from engines.errors import NotInstalled
from engines.secrets import masked_data
from harness.experiment import Experiment
from results.records import TrialPlan

_NOT_MEASURED = ("label", "port")


def fingerprint(
    experiment: Experiment, made: Engine, model: Model, plan: TrialPlan, *, traffic_sha256: str, machine: dict[str, Any]
) -> str:
    """SHA-256 over everything that may change a trial's figures, in hexadecimal.

    Args:
        experiment: the whole.
        made: the engine that the trial is of.
        model: what it serves.
        plan: which trial.
        traffic_sha256: over the lengths, order and times of what is sent.
        machine: as :func:`harness.environment.machine` gives it.
    """
    side = next(side for side in experiment.engines if side.shown == plan.engine)
    config: dict[str, Any] = msgspec.to_builtins(side)
    told = {name: value for name, value in config.items() if name not in _NOT_MEASURED}
    whole = {
        "engine": told,
        "spec": msgspec.to_builtins(experiment.spec_of(side)),
        "package": _package(made),
        "model": [model.name, model.sha256],
        "workload": msgspec.to_builtins(experiment.workload),
        "traffic": traffic_sha256,
        "load": msgspec.to_builtins(plan.load),
        "repeat": plan.repeat,
        "seed": experiment.seed,
        "trial": msgspec.to_builtins(experiment.trial),
        "logprobs": experiment.quality.samples if experiment.quality.logprobs else 0,
        "client": msgspec.to_builtins(experiment.client),
        "machine": machine,
    }
    return hashlib.sha256(msgspec.json.encode(masked_data(whole), order="sorted")).hexdigest()


def _package(made: Engine) -> str | None:
    """Version of the package that will be started; None for what is not one, or is not there."""
    version = getattr(made, "installed_version", None)
    try:
        return version() if version else None
    except NotInstalled:
        return None
