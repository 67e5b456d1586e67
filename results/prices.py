"""Prices of hardware and of tokens, in whatever currency the user states them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Self, TypeVar

import msgspec

from bakeoff.results.errors import BadPrice

Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
T = TypeVar("T", bound="TokenPrices")


class TokenPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What an API bills for a million tokens; None for a kind that it does not bill."""

    input: Price | None = None
    """Prompt tokens."""
    cached: Price | None = None
    """Those of them that the prefix cache held. Default: the price of the others."""
    output: Price | None = None

    @property
    def bill_tokens(self) -> bool:
        """Whether there is a price of tokens."""
        return self.input is not None or self.cached is not None or self.output is not None

    def under(self, own: Self) -> Self:
        """A copy in which what ``own`` states takes precedence."""
        stated = {name: value for name in own.__struct_fields__ if (value := getattr(own, name)) is not None}
        return msgspec.structs.replace(self, **stated)


class Prices(TokenPrices, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What an engine costs: its hardware, and what its tokens are billed; all that is stated is added up."""

    gpu_hour: Price | None = None
    """An hour of one GPU."""
    machine_hour: Price | None = None
    """An hour of everything else, or of a machine without GPUs."""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """GPUs that are paid for. Default: those whose memory the engine takes."""

    @property
    def are_stated(self) -> bool:
        """Whether there is a price."""
        return self.gpu_hour is not None or self.machine_hour is not None or self.bill_tokens


def prices_from(given: str | Sequence[str] | Mapping[str, float] | None) -> Prices:
    """Prices from ``gpu-hour=3.5``, ``gpus=2``, ``output=10``…, or from a dict of the same names.

    Raises:
        BadPrice: one is malformed, or stated twice.
    """
    return _converted(given, Prices)


def token_prices_from(given: str | Sequence[str] | Mapping[str, float] | None) -> TokenPrices:
    """Prices of an API from ``input=2.5``, ``cached=0.25`` and ``output=10``, or from a dict of the same names.

    Raises:
        BadPrice: one is malformed, or stated twice.
    """
    return _converted(given, TokenPrices)


def _converted(given: str | Sequence[str] | Mapping[str, float] | None, into: type[T]) -> T:
    names = {field.replace("_", "-"): field for field in into.__struct_fields__}
    values: dict[str, object] = {}
    for name, value in _pairs(given):
        field = names.get(name.strip().replace("_", "-"))
        if field is None:
            raise BadPrice(f"'{name}' is not a price; write NAME=NUMBER with one of {', '.join(sorted(names))}")
        if field in values:
            raise BadPrice(f"{name} is stated twice; state it once")
        values[field] = value
        try:
            msgspec.convert({field: value}, into, strict=False)
        except msgspec.ValidationError as error:
            raise BadPrice(f"{name}={value} is no price; write a number, such as {name}=2") from error
    return msgspec.convert(values, into, strict=False)


def _pairs(given: str | Sequence[str] | Mapping[str, float] | None) -> Iterator[tuple[str, object]]:
    if isinstance(given, Mapping):
        yield from given.items()
        return
    for text in [given] if isinstance(given, str) else given or ():
        name, _, number = text.partition("=")
        yield name, number
