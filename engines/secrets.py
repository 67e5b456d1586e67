"""Secrets that this process has been given: known here so that nothing of them is ever written or shown.

Keys come as headers, in an address, in an experiment file or through the environment. Whoever takes one in says
:func:`conceal`; whoever writes anything down that may hold one says :func:`masked`.
"""

import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "•••"
LEAST_CHARS = 6
"""Anything shorter would be found in too many innocent places."""
_NAMES = re.compile(
    r"(^|[_.-])(api[_-]?key|key|token|secret|password|passwd|pwd|authorization|auth|credentials?|cookie)$",
    re.IGNORECASE,
)
_known: set[str] = set()


def names_secret(name: str) -> bool:
    """Whether something of that name holds a secret: ``HF_TOKEN``, ``--api-key``; not ``max_num_batched_tokens``.

    ``PWD`` is the shell's working directory, which stands in front of half of all paths.
    """
    return name != "PWD" and _NAMES.search(name) is not None


def conceal(*values: str) -> None:
    """Remember secrets, also as a URL spells them; those of headers like ``Bearer KEY`` without the first word too."""
    for value in values:
        parts = {value, value.rpartition(" ")[2]}
        _known.update(part for part in (*parts, *map(urllib.parse.quote, parts)) if len(part) >= LEAST_CHARS)


def conceal_named(values: Mapping[str, str]) -> None:
    """Remember the values whose names say that they are secrets."""
    conceal(*(value for name, value in values.items() if names_secret(name)))


def known() -> Iterable[str]:
    """Every secret so far, longest first, so that one inside another leaves nothing of either."""
    return sorted(_known, key=len, reverse=True)


def conceal_environment() -> None:
    """Remember the secrets that this process inherited."""
    conceal_named(os.environ)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables whose names do not say that they are secrets: what an engine inherits without being given it."""
    return {name: value for name, value in environ.items() if not names_secret(name)}


def masked(text: str) -> str:
    """The text with every known secret replaced."""
    for secret in known():
        text = text.replace(secret, MASK)
    return text


def masked_data(data: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
    """Plain data with every known secret replaced in all its texts, names of fields included."""
    if isinstance(data, str):
        return masked(data)
    if isinstance(data, dict):
        return {masked(str(name)): masked_data(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked_data(value) for value in data]
    return data
