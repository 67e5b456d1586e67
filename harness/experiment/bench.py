"""The experiment of ``bakeoff bench``: a running server, which is asked for everything that the user leaves out."""

import asyncio
from collections.abc import Sequence
from os import PathLike
from typing import Any

from bakeoff.engines import Deployment
from bakeoff.engines.base import base_url
from bakeoff.engines.errors import NotIdentified, NotReady
from bakeoff.engines.identification import identify, only_model, tokenizer_folder
from bakeoff.engines.identity import Identity
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment, TrialConfig, experiment_from
from bakeoff.harness.host.machine_state import MAX_FOREIGN_SHARE
from bakeoff.workloads import APPROXIMATE

DEFAULT_CONCURRENCY = (1, 8)
"""Default load levels: a single user, and a moderate load."""


def bench_experiment(
    *,
    url: str,
    engine: str | None = None,
    model: str | None = None,
    tokenizer: str | PathLike[str] | None = None,
    workload: str = "chat",
    scale: float | None = None,
    rate_per_s: float | None = None,
    arrival: str = "poisson",
    concurrency: int | Sequence[int] | None = None,
    duration_s: float = 30.0,
    ramp_s: float = 5.0,
    repeats: int = 1,
    seed: int = 1,
    api_key_env: str | None = None,
    calibrate: bool = True,
    max_foreign_share: float = MAX_FOREIGN_SHARE,
    workers: int | None = None,
    ray: str | None = None,
    name: str = "bench",
) -> Experiment:
    """Build an experiment for a running server; ``bakeoff bench --help`` documents the parameters.

    The server is asked for engine and model if they are not given. If the model's tokenizer is not on this machine,
    prompt lengths are approximate.

    Raises:
        BadExperiment, EngineError, WorkloadError: as :func:`~bakeoff.harness.experiment.config.experiment_from`; both a
        rate
            and a concurrency are given; or the server does not identify itself.
    """
    if rate_per_s is not None and concurrency is not None:
        raise BadExperiment("bench needs one kind of load; give either a concurrency or a rate")
    levels = (concurrency,) if isinstance(concurrency, int) else concurrency or DEFAULT_CONCURRENCY
    loads = [{"concurrency": level} for level in levels]
    if rate_per_s is not None:
        loads = [{"rate_per_s": rate_per_s, "arrival": arrival}]
    server = {"adapter": engine or "openai", "url": url} | ({"api_key_env": api_key_env} if api_key_env else {})
    data: dict[str, Any] = {
        "name": name,
        "seed": seed,
        "repeats": repeats,
        "model": {"name": model, "tokenizer": str(tokenizer or APPROXIMATE)},
        "engines": [server],
        "workload": {"name": workload, "options": {} if scale is None else {"scale": scale}},
        "loads": loads,
        "trial": {
            "duration_s": duration_s,
            "max_window_s": max(TrialConfig().max_window_s, duration_s),
            "ramp_s": ramp_s,
            "max_foreign_share": max_foreign_share,
        },
        "client": {"calibrate": calibrate, "ray": ray, "workers": 1 if workers is None else workers},
        "quality": {"samples": 0},  # nothing here names the model's weights
    }
    experiment = experiment_from(data, "bench")  # refuses mistakes before the server is asked
    if engine is not None and model is not None and tokenizer is not None:
        return experiment
    identity = asyncio.run(_identity(url, engine, model, api_key_env, ray))
    model = model or only_model(identity, base_url(url))  # base_url: errors must not quote the URL's password
    tokenizer = tokenizer or tokenizer_folder(model, identity.checkpoint) or APPROXIMATE
    data["model"] = {"name": model, "tokenizer": str(tokenizer)}
    data["engines"] = [server | {"adapter": identity.adapter, "options": identity.options}]
    return experiment_from(data, "bench")


async def _identity(
    url: str, engine: str | None, model: str | None, api_key_env: str | None, ray: str | None
) -> Identity:
    """Ask the server for its identity; an unknown one is an error only if engine or model is not given."""
    try:
        return await identify(Deployment(url=url, api_key_env=api_key_env), engine)
    except NotIdentified:
        if engine is None or model is None:
            raise
    except NotReady as error:
        if not ray:
            raise
        if engine is None or model is None:
            raise NotIdentified(
                f"{base_url(url)} cannot be reached from this machine; give --engine and --model, or correct --url"
            ) from error
    return Identity(engine, (model,))
