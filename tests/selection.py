"""Parameters of which `make test` takes some and `make nightly` takes all."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def sampled(values: Iterable[Any], taken: Collection[Any], ids: Sequence[str] | None = None) -> list[Any]:
    """Parameters of which those not taken are left to `make nightly`.

    Args:
        values: one for each parametrised call; a tuple for several arguments.
        taken: values, or ids if these are given.
        ids: of the values.
    """
    params: list[Any] = []
    for number, value in enumerate(values):
        marks = () if (ids[number] if ids else value) in taken else (pytest.mark.nightly,)
        arguments = value if isinstance(value, tuple) else (value,)
        params.append(pytest.param(*arguments, marks=marks, id=ids[number] if ids else None))
    return params
