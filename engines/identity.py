"""Types with which adapters recognise a running server."""

from collections.abc import Mapping
from typing import Any

import msgspec

MODELS_PAGE = "/v1/models"

Pages = Mapping[str, Any]
"""JSON of the requested pages, by path; pages that the server does not have are left out."""


class Identity(msgspec.Struct, frozen=True):
    """The adapter for a server, and what the server serves.

    Attributes:
        adapter: name of the adapter.
        models: names that requests may use.
        checkpoint: folder, file or hub name that the server loaded; None if unknown.
        options: adapter options that depend on the server.
    """

    adapter: str
    models: tuple[str, ...]
    checkpoint: str | None = None
    options: dict[str, Any] = {}


class ListedModel(msgspec.Struct, frozen=True):
    """One entry of ``/v1/models``; ``root`` is vLLM's name for the checkpoint, ``type`` is Anthropic's."""

    id: str
    owned_by: str | None = None
    root: str | None = None
    type: str | None = None


def field_of(pages: Pages, path: str, *keys: str) -> Any:  # noqa: ANN401  (any JSON value)
    """Value under nested keys of a page; None if missing."""
    value = pages.get(path)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def listed_models(pages: Pages) -> list[ListedModel]:
    """The entries of ``/v1/models`` that have a name, each once; the page is a list, or has one in ``data``."""
    page = pages.get(MODELS_PAGE)
    entries = page if isinstance(page, list) else field_of(pages, MODELS_PAGE, "data")
    found: dict[str, ListedModel] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and (name := _text(entry, "id")) is not None:
            kind = None if "object" in entry else _text(entry, "type")  # with both it is OpenAI's form
            found.setdefault(name, ListedModel(name, _text(entry, "owned_by"), _text(entry, "root"), kind))
    return list(found.values())


def _text(entry: Mapping[str, Any], name: str) -> str | None:
    return value if isinstance(value := entry.get(name), str) else None
