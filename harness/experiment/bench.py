"""Experiments with running servers, from what these tell of themselves and from options of the command line."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bakeoff.engines import Deployment
from bakeoff.engines.dialects.failures import UNREADABLE
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import NotIdentified, NotReady
from bakeoff.engines.identification import identify, only_model, tokenizer_folder
from bakeoff.engines.identity import Identity
from bakeoff.engines.secrets import names_secret
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.workloads import APPROXIMATE


def identified(
    data: dict[str, Any], *, urls: Sequence[str], engine: str | None, model: str | None, tokenizer: str | None
) -> tuple[Experiment, tuple[str, ...]]:
    """Build an experiment for running servers, which are asked for everything that is None.

    If the model's tokenizer is not on this machine, prompt lengths are approximate.

    Args:
        data: the experiment but for its model and the adapters of its engines.
        urls: address of each engine's server; of one with several addresses the first.
        engine: adapter that speaks the servers' API.
        model: name of the model to send in requests.
        tokenizer: folder with the model's tokenizer.json, or ``approximate``.

    Returns:
        the experiment, and the models that the first server lists, if it was asked.

    Raises:
        BadExperiment, EngineError, WorkloadError: as of :func:`~bakeoff.harness.experiment.reading.experiment_from`;
            or the server does not identify itself.
    """
    servers: list[dict[str, Any]] = data["engines"]

    def experiment_of(engines: list[dict[str, Any]], name: str | None, folder: str) -> Experiment:
        labels = _labels([each["adapter"] for each in engines], urls)
        labelled = [({"label": label} if label else {}) | each for each, label in zip(engines, labels, strict=True)]
        return experiment_from(data | {"model": {"name": name, "tokenizer": folder}, "engines": labelled}, "bench")

    # refuses mistakes before a server is asked
    given = [server | {"adapter": engine or "openai"} for server in servers]
    experiment = experiment_of(given, model, str(tokenizer or APPROXIMATE))
    if engine is not None and model is not None and tokenizer is not None:
        return experiment, ()
    identities = [
        asyncio.run(
            _identity(
                Deployment(url=url, api_key_env=server.get("api_key_env"), headers=server["headers"]),
                engine, model, experiment.client.ray,
            )
        )
        for server, url in zip(servers, urls, strict=True)
    ]  # fmt: skip
    bases = [endpoint(url).base_url for url in urls]  # errors must not quote a password
    models = [model or only_model(each, base) for each, base in zip(identities, bases, strict=True)]
    if len(set(models)) > 1:
        served = " and ".join(f"{base} serves {name}" for base, name in zip(bases, models, strict=True))
        raise BadExperiment(f"{served}; both must answer to one name: give it as --model, or serve them under one")
    first = identities[0]
    folder = str(tokenizer or tokenizer_folder(models[0], first.checkpoint) or APPROXIMATE)
    found = [
        server | {"adapter": identity.adapter, "options": identity.options}
        for server, identity in zip(servers, identities, strict=True)
    ]
    return experiment_of(found, models[0], folder), first.models


SEARCH_MINUTES = 5.0
"""Default duration of a search whose experiment is an address."""
_SEARCH_START, _SEARCH_TRIAL = 8, {"duration_s": 10.0, "ramp_s": 2.0}
"""First level of such a search, and its trials, which are short: a search pools the requests of all of them."""


def searched_server(
    url: str,
    *,
    over_rate: bool,
    workload: dict[str, Any],
    engine: str | None,
    model: str | None,
    tokenizer: str | None,
    api_key_env: str | None,
    header: str | Sequence[str] | Mapping[str, str] | None,
    max_foreign_share: float | None = None,
) -> Experiment:
    """The experiment of a search for what one running server carries.

    Args:
        url: base URL of the server.
        over_rate: whether rates are searched, rather than concurrency.
        workload: the workload, as in an experiment's file.
        engine: adapter of the server's API, as for :func:`identified`.
        model: model name, as for :func:`identified`.
        tokenizer: the model's, as for :func:`identified`.
        api_key_env: environment variable that holds the server's API key.
        header: headers of requests.
        max_foreign_share: share of the CPU that others may use in a VALID trial.

    Raises:
        BadExperiment, EngineError, WorkloadError: as :func:`identified`.
    """
    headers, secret_headers = split_headers(header)
    server: dict[str, Any] = {"url": url, "headers": secret_headers}
    server |= {"api_key_env": api_key_env} if api_key_env else {}
    load = {"rate_per_s": 1.0, "arrival": "poisson"} if over_rate else {"concurrency": _SEARCH_START}
    data: dict[str, Any] = {
        "name": "bench",
        "engines": [server],
        "request": {"headers": headers},
        "workload": workload,
        "loads": [load],
        "trial": _SEARCH_TRIAL | ({} if max_foreign_share is None else {"max_foreign_share": max_foreign_share}),
        "quality": {"samples": 0},
    }
    return identified(data, urls=[url], engine=engine, model=model, tokenizer=tokenizer)[0]


def identified_line(experiment: Experiment, urls: Sequence[str]) -> str:
    """What was found at the addresses of an experiment's engines: ``vllm at http://…; model m, tokenizer t``."""
    bases, labels = [endpoint(each).base_url for each in urls], [each.name for each in experiment.engines]
    if len(bases) > len(labels):
        names = f"{', '.join(bases)}: replicas of one {labels[0]} (--against compares two servers)"
    else:
        names = ", ".join(f"{label} at {base}" for label, base in zip(labels, bases, strict=True))
        names += " (one server: what differs is noise)" if len(set(bases)) < len(bases) else ""
    return f"{names}; model {experiment.model.name}, tokenizer {experiment.model.tokenizer}"


def _labels(adapters: Sequence[str], urls: Sequence[str]) -> list[str | None]:
    """Names of engines in tables: where the adapter's is that of several, also the port, the host or a letter."""
    if len(set(adapters)) == len(adapters):
        return [None] * len(adapters)
    parsed = [endpoint(url) for url in urls]
    ports, hosts = [str(each.port) for each in parsed], [each.host for each in parsed]
    letters = [chr(ord("a") + place) for place in range(len(urls))]
    places = next(names for names in (ports, hosts, letters) if len(set(names)) == len(names))
    return [
        f"{adapter}-{re.sub(r'[^A-Za-z0-9.-]', '-', place)}" for adapter, place in zip(adapters, places, strict=True)
    ]


def json_object(text: str | Mapping[str, Any] | None, option: str) -> dict[str, Any]:
    """An option that is a JSON object; empty if it was not given.

    Raises:
        BadExperiment: it is no JSON, or no object.
    """
    if text is None or isinstance(text, Mapping):
        return dict(text or {})
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (*UNREADABLE, UnicodeEncodeError) as error:
        raise BadExperiment(f"{option} is not a JSON object: {error}; write it like '{{\"top_k\": 20}}'") from error


def split_headers(given: str | Sequence[str] | Mapping[str, str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Headers of requests, and those whose names denote secrets, which are not stored.

    Raises:
        BadExperiment: one of them is not written as ``NAME: VALUE``.
    """
    if isinstance(given, Mapping):
        headers = dict(given)
    else:
        headers: dict[str, str] = {}
        for line in [given] if isinstance(given, str) else given or ():
            name, colon, value = line.partition(":")
            if not colon:
                raise BadExperiment("--header is written as 'NAME: VALUE', with a colon")
            if name.strip().lower() in map(str.lower, headers):
                raise BadExperiment(f"--header gives {name.strip()} twice; give it once")
            headers[name.strip()] = value.strip()
    secret = {name: value for name, value in headers.items() if names_secret(name)}
    return {name: value for name, value in headers.items() if name not in secret}, secret


async def _identity(deployment: Deployment, engine: str | None, model: str | None, ray: str | None) -> Identity:
    """Ask the server for its identity; an unknown one is an error only if engine or model is not given."""
    try:
        return await identify(deployment, engine)
    except NotIdentified:
        if engine is None or model is None:
            raise
    except NotReady as error:
        if not ray:
            raise
        if engine is None or model is None:
            place = endpoint(deployment.url or "").base_url
            raise NotIdentified(
                f"{place} cannot be reached from this machine; give --engine and --model, or correct --url"
            ) from error
    return Identity(engine, (model,))
