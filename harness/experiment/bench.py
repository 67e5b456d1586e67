"""What a running server tells of itself, for ``bakeoff bench``."""

import asyncio
from typing import Any

from bakeoff.engines import Deployment
from bakeoff.engines.base import base_url
from bakeoff.engines.errors import NotIdentified, NotReady
from bakeoff.engines.identification import identify, only_model, tokenizer_folder
from bakeoff.engines.identity import Identity
from bakeoff.harness.experiment.config import Experiment, experiment_from
from bakeoff.workloads import APPROXIMATE


def identified(
    data: dict[str, Any], *, url: str, engine: str | None, model: str | None, tokenizer: str | None
) -> tuple[Experiment, tuple[str, ...]]:
    """Build an experiment for a running server, which is asked for everything that is None.

    If the model's tokenizer is not on this machine, prompt lengths are approximate.

    Args:
        data: the experiment but for its model and the adapter of its engine.
        url: address of the server.
        engine: adapter that speaks the server's API.
        model: name of the model to send in requests.
        tokenizer: folder with the model's tokenizer.json, or ``approximate``.

    Returns:
        the experiment, and the models that the server lists, if it was asked.

    Raises:
        BadExperiment, EngineError, WorkloadError: as :func:`~bakeoff.harness.experiment.config.experiment_from`; or the
            server does not identify itself.
    """
    (server,) = data["engines"]
    given = data | {
        "model": {"name": model, "tokenizer": str(tokenizer or APPROXIMATE)},
        "engines": [server | {"adapter": engine or "openai"}],
    }
    experiment = experiment_from(given, "bench")  # refuses mistakes before the server is asked
    if engine is not None and model is not None and tokenizer is not None:
        return experiment, ()
    identity = asyncio.run(_identity(url, engine, model, server.get("api_key_env"), experiment.client.ray))
    model = model or only_model(identity, base_url(url))  # base_url: errors must not quote the URL's password
    tokenizer = str(tokenizer or tokenizer_folder(model, identity.checkpoint) or APPROXIMATE)
    found = {"adapter": identity.adapter, "options": identity.options}
    asked = data | {"model": {"name": model, "tokenizer": tokenizer}, "engines": [server | found]}
    return experiment_from(asked, "bench"), identity.models


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
