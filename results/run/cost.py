"""What the traffic of a run costs: by token, request and session, and beside an API that bills the same tokens.

Hardware costs the same whether it works or not, so a cost holds for its load alone. Each figure is computed for each
valid trial from its rates, and its interval is over the trials; prices have no error.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from bakeoff.results.errors import BadPrice, NoEvidence, NotComparable
from bakeoff.results.metric import Unit
from bakeoff.results.metrics import Value, absent
from bakeoff.results.prices import Prices, TokenPrices
from bakeoff.results.run.cells import Cell, why_absent
from bakeoff.results.run.gpus import gpus_used
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.interval import Interval, interval_of

_HOUR_S = 3600.0
_MILLION, _THOUSAND = 1e6, 1e3


class Figure(StrEnum):
    """A figure of cost, in the currency of the prices unless stated otherwise."""

    HOUR = "per_hour"
    """Of the engine under this load."""
    OUTPUT = "per_million_output_tokens"
    """All costs, prompts included, over the output tokens."""
    TOKENS = "per_million_tokens"
    """All costs over prompt and output tokens."""
    REQUESTS = "per_thousand_requests"
    GOODPUT = "per_thousand_requests_that_met_the_slo"
    SESSION = "per_session"
    API_HOUR = "api_per_hour"
    """What the API bills for the same traffic."""
    BREAK_EVEN = "break_even_share"
    """Share of the time that the engine must be under this load for its hardware to cost what it saves beside the API;
    above 1 the API is cheaper. No unit."""


class CellCost(msgspec.Struct, frozen=True):
    """The costs of one engine at one load, over its valid trials.

    Attributes:
        run: name of the run's folder.
        engine: label.
        workload: name.
        load: label of the load.
        prices: of the engine.
        gpus: GPUs that are paid for; None if there are none, or unknown.
        figures: those that are known.
        reasons: why others are not; figures that no price concerns are in neither.
    """

    run: str
    engine: str
    workload: str
    load: str
    prices: Prices
    gpus: int | None
    figures: dict[Figure, Interval]
    reasons: dict[Figure, str]


def costs(runs: Sequence[Run], prices: Prices | None = None, api: TokenPrices | None = None) -> list[CellCost]:
    """One entry for each engine and load of each run.

    Args:
        runs: whose experiments may state prices.
        prices: of every engine; they take precedence.
        api: prices of an API; likewise.

    Raises:
        NotComparable: there is no run.
        NoEvidence: no trial is valid.
        BadPrice: no engine has a price.
    """
    if not runs:
        raise NotComparable("name the folder of a run, such as those under runs/")
    entries = [
        _of_cell(run, cell, prices or Prices(), run.manifest.api_prices.under(api or TokenPrices()))
        for run in runs
        for cell in run.cells
    ]
    if not any(entry.prices.are_stated for entry in entries):
        raise BadPrice("no price is known; give --price gpu-hour=3.5, machine-hour=0.4 or output=10")
    if not any(entry.figures for entry in entries):
        raise NoEvidence(f"nothing can be costed: {next(why for entry in entries for why in entry.reasons.values())}")
    return entries


def trial_costs(
    rates: Mapping[str, Value], prices: Prices, api: TokenPrices, gpus: int | None = None
) -> dict[Figure, Value]:
    """The figures of one trial.

    Args:
        rates: metrics of the trial by name, of which those per second and per hour are read.
        prices: of the engine.
        api: prices of an API.
        gpus: GPUs that are paid for.

    Returns:
        the figures that prices concern.
    """
    hardware, own = _hardware(prices, gpus), _billed(rates, prices)
    hour = _sum(hardware, own)
    output, prompt = rates["generated_tokens_per_s"], rates["prompt_tokens_per_s"]
    tokens = output if output.value is None or prompt.value is None else Value(output.value + prompt.value)
    found = {
        Figure.HOUR: hour,
        Figure.OUTPUT: _per(hour, output, _MILLION, "no output token"),
        Figure.TOKENS: _per(hour, prompt if prompt.value is None else tokens, _MILLION, "no token"),
        Figure.REQUESTS: _per(hour, rates["requests_per_s"], _THOUSAND, "no request was answered"),
        Figure.GOODPUT: _per(hour, rates["goodput_per_s"], _THOUSAND, "no request met the SLO"),
        Figure.SESSION: _per(hour, rates["sessions_per_hour"], _HOUR_S, "no session ended"),
    }
    if api.bill_tokens:
        billed = _billed(rates, api)
        found[Figure.API_HOUR] = billed
        found[Figure.BREAK_EVEN] = _break_even(hardware, own, billed)
    return found


def _of_cell(run: Run, cell: Cell, given: Prices, api: TokenPrices) -> CellCost:
    prices = run.manifest.prices.get(cell.engine, Prices()).under(given)
    gpus = (prices.gpus or gpus_used(run, cell.engine)) if prices.gpu_hour is not None else None
    valid = [trial_costs(trial.metrics, prices, api, gpus) for trial in run.valid_trials_of(cell)]
    figures: dict[Figure, Interval] = {}
    reasons: dict[Figure, str] = {}
    for figure in valid[0] if valid else (Figure.OUTPUT,):
        values = [costs_of_trial[figure] for costs_of_trial in valid]
        if (reason := why_absent(values)) is not None:
            reasons[figure] = reason
        elif interval := interval_of(Unit.COUNT, [value.value for value in values if value.value is not None]):
            figures[figure] = interval
    return CellCost(run.path.name, cell.engine, cell.workload, cell.load, prices, gpus, figures, reasons)


def _hardware(prices: Prices, gpus: int | None) -> Value:
    """What an hour of the engine's hardware costs, whatever its load."""
    if not prices.are_stated:
        return absent("it has no price")
    total = prices.machine_hour or 0.0
    if prices.gpu_hour is None:
        return Value(total)
    if gpus is None:
        return absent("the number of its GPUs is not known; give --price gpus=1")
    return Value(total + prices.gpu_hour * gpus)


def _billed(rates: Mapping[str, Value], prices: TokenPrices) -> Value:
    """What an hour of the trial's tokens is billed; cached tokens are those that the engine's cache held."""
    total = 0.0
    if prices.output is not None:
        if (output := rates["generated_tokens_per_s"]).value is None:
            return output
        total += prices.output * output.value
    if prices.input is not None or prices.cached is not None:
        if (prompt := rates["prompt_tokens_per_s"]).value is None:
            return prompt
        full = prices.input or 0.0
        uncached = rates["uncached_prompt_tokens_per_s"].value
        cached = 0.0 if uncached is None else prompt.value - uncached
        total += full * (prompt.value - cached) + (full if prices.cached is None else prices.cached) * cached
    return Value(total * _HOUR_S / _MILLION)


def _per(hour: Value, rate: Value, count: float, nothing: str) -> Value:
    """Cost of so many of what comes at a rate per second."""
    if hour.value is None:
        return hour
    if rate.value is None:
        return rate
    return Value(hour.value / (rate.value * _HOUR_S) * count) if rate.value > 0 else absent(nothing)


def _sum(hardware: Value, own: Value) -> Value:
    if hardware.value is None or own.value is None:
        return hardware if hardware.value is None else own
    return Value(hardware.value + own.value)


def _break_even(hardware: Value, own: Value, billed: Value) -> Value:
    """Hardware over what the API bills beyond the engine's own tokens: only hardware is paid while nothing runs."""
    if hardware.value is None or own.value is None:
        return hardware if hardware.value is None else own
    if billed.value is None:
        return billed
    if own.value >= billed.value:
        return absent("the engine's own tokens cost no less than the API bills")
    return Value(hardware.value / (billed.value - own.value))
