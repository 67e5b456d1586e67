"""Ask a running server which adapter it needs and which model it serves.

Each adapter recognises its own server (``ServerEngine.identify``); a server that only lists its models counts as
OpenAI-compatible.
"""

import asyncio
import os
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bakeoff.engines.access import Access
from bakeoff.engines.adapters.openai import OpenAiEngine
from bakeoff.engines.base import access_to
from bakeoff.engines.deployment import Deployment
from bakeoff.engines.dialects.failures import UNREADABLE
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import NotIdentified
from bakeoff.engines.identity import MODELS_PAGE, Identity, Pages, listed_models
from bakeoff.engines.models import KNOWN_MODELS, cached
from bakeoff.engines.registry import adapter_class, adapter_names
from bakeoff.engines.server import reason_of, redirection, require_listener
from bakeoff.engines.server_engine import ServerEngine

_TIMEOUT_S = 10.0
_SHOWN = 5
"""Most models in a message."""
_ANTHROPIC_VERSION = "2023-06-01"


async def identify(deployment: Deployment, adapter: str | None = None) -> Identity:
    """Ask a server for its engine and model.

    Args:
        deployment: its URL and credentials.
        adapter: the only adapter to consider; None for all.

    Raises:
        BadOption: the URL is invalid, or the key's variable is not set.
        UnknownEngine: no adapter has that name.
        NotReady: nothing listens at the URL.
        NotIdentified: the server does not answer, its answers do not identify adapter and model, or an adapter of
            another package fails to tell.
    """
    address = endpoint(deployment.address or "").base_url
    await require_listener(address)
    kinds = [kind for name in ([adapter] if adapter else adapter_names()) if (kind := _server_class(name))]
    paths = sorted({MODELS_PAGE, *(path for kind in kinds for path in kind.identity_pages)})
    access = access_to(deployment)
    pages, moved, status = await _pages(address, access, paths)
    kinds.sort(key=lambda kind: kind is OpenAiEngine)  # last, because any server that lists models matches
    identities = (identity for kind in kinds if (identity := _identity(kind, pages)))
    if identity := next(identities, None):
        return identity
    if moved:
        raise NotIdentified(f"{address} redirects to {moved}; give that address with --url")
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise NotIdentified(
            _refusal(address, HTTPStatus(status), deployment.api_key_env, has_key="authorization" in access.headers)
        )
    if adapter:
        if models := listed_models(pages):  # a gateway in front of the engine lists them under another owner
            return Identity(adapter, tuple(model.id for model in models), models[0].root)
        raise NotIdentified(f"{address} does not say which model it serves{_seen(status)}; give --model")
    advice = "give --engine (openai, or another of bakeoff engines list) and --model"
    raise NotIdentified(f"{address} does not say what it is{_seen(status)}; {advice}")


def _seen(status: int) -> str:
    """What a server answers in place of the list of its models; empty if it answers with a page."""
    return "" if status == HTTPStatus.OK else f" ({MODELS_PAGE}: HTTP {status})"


def _refusal(address: str, status: HTTPStatus, variable: str | None, *, has_key: bool) -> str:
    """Why a server tells nothing to this client, and what to do."""
    answer = f"{address} answers {status.value} {status.phrase}"
    if variable:
        return f"{answer} to the key in {variable}; correct it, or give the header that the server wants by --header"
    if has_key:
        return f"{answer} to the key of --header Authorization; correct that key"
    advice = "put the key into an environment variable and give --api-key-env NAME, or a header of its own by --header"
    return f"{answer}, as it does without a key; {advice}"


def _identity(kind: type[ServerEngine], pages: Pages) -> Identity | None:
    try:
        found: Any = kind.identify(pages)  # whatever an adapter of another package returns
        if found is None or isinstance(found, Identity):
            return found
        cause, problem = None, f"returned {found!r}, neither an Identity nor None"
    except Exception as error:  # noqa: BLE001
        cause, problem = error, f"failed with {type(error).__name__}: {error}"
    raise NotIdentified(f"{kind.__qualname__}.identify {problem}; give another adapter with --engine") from cause


def only_model(identity: Identity, url: str) -> str:
    """The name of a server's only model.

    Raises:
        NotIdentified: it serves several models, or does not list them.
    """
    if not identity.models:
        raise NotIdentified(f"{url} does not say which model it serves; give --model")
    if len(identity.models) == 1:
        return identity.models[0]
    first = ", ".join(identity.models[:_SHOWN]) + (", …" if len(identity.models) > _SHOWN else "")
    raise NotIdentified(f"{url} serves {len(identity.models)} models; choose one with --model: {first}")


def tokenizer_folder(model: str, checkpoint: str | None) -> Path | None:
    """Folder on this machine with the tokenizer of a served model; None if not found.

    Searched are the checkpoint itself, Bakeoff's own models and the cache of the Hugging Face hub.

    Args:
        model: name in requests.
        checkpoint: checkpoint that the server reports.
    """
    names = [name for name in (checkpoint, model) if name]
    folders = [place if place.is_dir() else place.parent for name in names if (place := Path(name)).is_absolute()]
    folders += [place for name in names if name in KNOWN_MODELS and (place := cached(name))]
    folders += [place for name in names for place in _hub_snapshots(name)]
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def _server_class(adapter: str) -> type[ServerEngine] | None:
    """The adapter's class; None if it does not derive from ServerEngine and so cannot identify servers."""
    kind = adapter_class(adapter)
    return kind if isinstance(kind, type) and issubclass(kind, ServerEngine) else None


def _hub_snapshots(name: str) -> Sequence[Path]:
    """Snapshots of a repository in the hub's cache, latest first."""
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        return []
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    snapshots = (cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*")
    return sorted(snapshots, key=lambda folder: folder.stat().st_mtime, reverse=True)


async def _pages(address: str, access: Access, paths: Sequence[str]) -> tuple[Pages, str | None, int]:
    """Fetch pages of the server.

    Returns:
        The pages, the address that the server redirects requests to, if it does, and the status with which it answers
        for the list of its models.

    Raises:
        NotIdentified: the server cannot be reached.
    """
    key = access.headers.get("authorization", "").removeprefix("Bearer ")
    headers = {"anthropic-version": _ANTHROPIC_VERSION, **({"x-api-key": key} if key else {}), **access.headers}
    limit = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
        try:
            answers = await asyncio.gather(*(_body(session, address + access.path(path)) for path in paths))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NotIdentified(f"{address} cannot be reached: {reason_of(error)}") from error
    by_path = dict(zip(paths, answers, strict=True))
    pages = {path: _json(body) for path, (_, body, _) in by_path.items() if body is not None}
    moves = (place.removesuffix(path) for path, (_, _, place) in by_path.items() if place)
    known = {path: page for path, page in pages.items() if page is not None}
    return known, next(moves, None), by_path[MODELS_PAGE][0]


async def _body(session: aiohttp.ClientSession, url: str) -> tuple[int, bytes | None, str | None]:
    """Status of a page, its body, None without one, and the address that the server redirects to instead."""
    async with session.get(url, allow_redirects=False) as answer:
        return answer.status, (await answer.read() if answer.status == HTTPStatus.OK else None), redirection(answer)


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None
