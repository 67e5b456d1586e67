"""What a server that runs already says of itself: the types with which adapters recognise their own."""

from collections.abc import Mapping
from typing import Any

import msgspec

MODELS_PAGE = "/v1/models"

Pages = Mapping[str, Any]
"""JSON of the pages that were asked for, by path; those that the server does not have are left out."""


class Identity(msgspec.Struct, frozen=True):
    """Which adapter speaks to a server, and what it serves.

    Attributes:
        adapter: by name.
        models: names that requests may use.
        checkpoint: folder, file or hub name that the server loaded; None where it does not say.
        options: of the adapter, where they depend on the server.
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


def field_of(pages: Pages, path: str, *keys: str) -> Any:  # noqa: ANN401  (whatever the server says)
    """What stands in a page under one key inside the other; None where there is no such thing."""
    value = pages.get(path)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def listed_models(pages: Pages) -> list[ListedModel]:
    """The entries of ``/v1/models``; empty where there is no such page, or one of another shape."""
    try:
        return msgspec.convert(field_of(pages, MODELS_PAGE, "data") or [], list[ListedModel])
    except msgspec.ValidationError:
        return []
