"""Registry of the secrets that this process knows, so that none is ever written or shown.

Keys come from headers, addresses, experiment files and the environment. Code that receives a key calls
:func:`conceal`; code that writes text that may contain a key calls :func:`masked`.
"""

import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "•••"
LEAST_CHARS = 8
"""Shorter secrets are not masked, because they match ordinary text."""
_LONGEST_WORD = 20
_NUMBER = re.compile(r"[\d\s.,:/+-]*")
_NAMES = re.compile(
    r"(^|[_.-])(api[_-]?key|key|token|secret|password|passwd|pwd|authorization|auth|credentials?|cookie|sig|signature"
    r"|code)$",
    re.IGNORECASE,
)
_known: set[str] = set()


def names_secret(name: str) -> bool:
    """Whether a name denotes a secret: ``HF_TOKEN``, ``--api-key``; not ``max_num_batched_tokens``.

    ``PWD`` is the shell's working directory, a prefix of many paths, and not a secret.
    """
    return name != "PWD" and _NAMES.search(name) is not None


def is_maskable(value: str) -> bool:
    """Whether a secret may be masked wherever it occurs: it is long enough, and no word or number of ordinary text.

    Local servers are given ``token``, ``null`` or ``1``, which stand in every answer: masked there, they would change
    what was measured.
    """
    is_word = value.isalpha() and len(value) <= _LONGEST_WORD
    return len(value) >= LEAST_CHARS and not is_word and _NUMBER.fullmatch(value) is None


def conceal(*values: str) -> None:
    """Register secrets, also in URL encoding, and for ``Bearer KEY`` also the key alone."""
    for value in values:
        parts = {value, value.rpartition(" ")[2]}
        _known.update(part for part in (*parts, *map(urllib.parse.quote, parts)) if is_maskable(part))


def conceal_named(values: Mapping[str, str]) -> None:
    """Register the values whose names denote secrets."""
    conceal(*(value for name, value in values.items() if names_secret(name)))


def known() -> Iterable[str]:
    """All registered secrets, longest first, so that a secret containing another is masked in full."""
    return sorted(_known, key=len, reverse=True)


def conceal_environment() -> None:
    """Register the secrets in this process's environment."""
    conceal_named(os.environ)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables whose names do not denote secrets; an engine inherits these."""
    return {name: value for name, value in environ.items() if not names_secret(name)}


def masked(text: str) -> str:
    """``text`` with every known secret replaced."""
    for secret in known():
        text = text.replace(secret, MASK)
    return text


def masked_data(data: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """Plain data with every known secret replaced in all strings, including keys."""
    if isinstance(data, str):
        return masked(data)
    if isinstance(data, dict):
        return {masked(str(name)): masked_data(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked_data(value) for value in data]
    return data
