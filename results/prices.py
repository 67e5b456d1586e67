"""Prices of hardware and of tokens, in whatever currency the user states them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from bakeoff.results.errors import BadPrice

Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_OF_GPUS = "gpus"


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

    def under(self, own: "Prices") -> "Prices":
        """A copy in which what ``own`` states takes precedence."""
        return msgspec.structs.replace(self, **_stated(own))


def prices_from(texts: Sequence[str]) -> Prices:
    """Prices from ``gpu-hour=3.5``, ``gpus=2``, ``output=10``….

    Raises:
        BadPrice: one is malformed.
    """
    return _converted(texts, Prices)


def token_prices_from(texts: Sequence[str]) -> TokenPrices:
    """Prices of an API from ``input=2.5``, ``cached=0.25`` and ``output=10``.

    Raises:
        BadPrice: one is malformed.
    """
    return _converted(texts, TokenPrices)


def _converted(texts: Sequence[str], into: type[Any]) -> Any:  # noqa: ANN401  (that type)
    names = {field.replace("_", "-"): field for field in into.__struct_fields__}
    values: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        field = names.get(name.strip().replace("_", "-"))
        if field is None:
            raise BadPrice(f"'{text}' is not a price; write NAME=NUMBER with one of {', '.join(sorted(names))}")
        try:
            values[field] = int(number) if field == _OF_GPUS else float(number)
        except ValueError as error:
            raise BadPrice(f"'{text}' is not a price; '{number}' must be a number") from error
    try:
        return msgspec.convert(values, into)
    except msgspec.ValidationError as error:
        raise BadPrice(f"a price is out of range: {error}") from error


def _stated(prices: Prices) -> Mapping[str, Any]:
    return {name: value for name in prices.__struct_fields__ if (value := getattr(prices, name)) is not None}
