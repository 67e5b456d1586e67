"""The section ``cost`` of ``bakeoff report``."""

from typing import TYPE_CHECKING, Any

from bakeoff.harness.cli.options import Texts
from bakeoff.harness.cli.output import print_result
from bakeoff.harness.cli.sections.section import Section
from bakeoff.harness.cli.stored import each_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bakeoff.results.run.cost import CellCost

    Prices = str | Sequence[str] | Mapping[str, float]
else:
    Prices = Texts


def cost(*runs: str, price: Prices | None = None, api_price: Prices | None = None) -> "list[CellCost]":
    """Say what a run's traffic costs: by token, request and session, and beside an API.

    Hardware costs the same whether it works or not, so a cost holds for its load alone.

    Parameters
    ----------
    runs
        Run folders. Prices that their experiments state need not be given.
    price
        What an engine costs, such as gpu-hour=3.5, machine-hour=0.4, gpus=2 for a server whose GPUs are not known, or,
        if its tokens are billed, input=2.5, cached=0.25 and output=10 for a million of them. Repeat the option for
        several, which are added up. In Python also a dict.
    api_price
        What an API bills for the same tokens: input=2.5, cached=0.25, output=10. Repeat the option for several.
    """
    from bakeoff.results.prices import prices_from, token_prices_from
    from bakeoff.results.run.cost import costs

    return costs(each_once(runs), prices_from(price), token_prices_from(api_price))


def _print(runs: "Sequence[str]", options: "Mapping[str, Any]", json: bool) -> None:
    from bakeoff.results.report import print_costs

    print_result(cost(*runs, **options), print_costs, json=json)


SECTION = Section("cost", _print, ("price", "api_price"), takes_several=True)
