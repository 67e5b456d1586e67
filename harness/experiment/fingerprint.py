"""What makes two trials the same measurement: then one that is finished need not be run again.

A fingerprint is over all that the harness decides or can know before an engine starts: the engine and everything that
it is told, the build of its code and of this one, the model's bytes, the traffic's lengths and times, the limits of the
trial, the client, and this machine. It leaves out what does not touch the figures of the trial: labels, ports, the
other engines, bounds for goodput, and whether answers are checked afterwards. Secrets are masked before they are
hashed.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from engines import Engine, Model
from engines.base import SupportsBuild
from engines.build import checkout
from engines.errors import NotInstalled
from engines.secrets import masked_data
from harness.experiment.config import Experiment
from harness.host.environment import VERSION
from results.records import TrialPlan

_NOT_MEASURED = ("label", "port")


def fingerprint(
    experiment: Experiment,
    model: Model,
    plan: TrialPlan,
    *,
    build: dict[str, Any],
    traffic_sha256: str,
    machine: dict[str, Any],
) -> str:
    """SHA-256 over everything that may change a trial's figures, in hexadecimal.

    Args:
        experiment: the whole.
        model: what the engine serves.
        plan: which trial.
        build: as :func:`build_of_engine` gives it.
        traffic_sha256: over the lengths, order and times of what is sent.
        machine: as :func:`harness.host.environment.machine` gives it.
    """
    side = experiment.side(plan.engine)
    config: dict[str, Any] = msgspec.to_builtins(side)
    told = {name: value for name, value in config.items() if name not in _NOT_MEASURED}
    whole = {
        "engine": told,
        "spec": msgspec.to_builtins(experiment.spec_of(side)),
        "build": build,
        "bakeoff": _own_build(),
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


def build_of_engine(made: Engine) -> dict[str, Any]:
    """Which code a launch of an engine runs.

    Empty where that is not known: at an address, over ssh, where it is not installed, and of adapters of other packages
    that do not say.
    """
    try:
        return made.build() if isinstance(made, SupportsBuild) else {}
    except NotInstalled:
        return {}


@functools.cache
def _own_build() -> list[str | None]:
    """Of the harness, whose client takes the times; as it was when it was loaded."""
    return [VERSION, checkout(Path(__file__).parents[2])]
