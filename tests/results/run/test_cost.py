"""What traffic costs: figures beside arithmetic by hand, and what is said where one is unknown."""

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff import results
from bakeoff.results.errors import BadPrice, NoEvidence, NotComparable
from bakeoff.results.metrics import Value, absent
from bakeoff.results.prices import Prices, TokenPrices, prices_from, token_prices_from
from bakeoff.results.report import print_costs, render_html
from bakeoff.results.run.cost import CellCost, Figure, costs, trial_costs
from bakeoff.results.run.run import Run
from tests.results.amending import amend_trial, taking_gpus
from tests.results.builders import FAST, SLOW, Sheet, build_run

PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "results"
RATES = ("generated_tokens_per_s", "prompt_tokens_per_s", "uncached_prompt_tokens_per_s", "requests_per_s",
         "goodput_per_s", "sessions_per_hour")  # fmt: skip


def published(name: str, trial: str) -> dict[str, Value]:
    """The rates of a trial of a published run."""
    with (PUBLISHED / name / "trials.csv").open(encoding="utf-8") as file:
        (row,) = [row for row in csv.DictReader(file) if row["trial"] == trial]
    row["generated_tokens_per_s"] = row["output_tokens_per_s"]  # no token was hidden
    return {name: Value(float(row[name])) if row.get(name) else absent("not published") for name in RATES}


def rates(**values: float) -> dict[str, Value]:
    return {name: Value(values[name]) if name in values else absent("unknown") for name in RATES}


def figures(found: dict[Figure, Value]) -> dict[Figure, float]:
    return {figure: value.value for figure, value in found.items() if value.value is not None}


def test_a_gpu_hour_equals_arithmetic_by_hand():
    """1,284.65 output, 7,709.56 prompt tokens, 6.29072 requests and 6.25 that met the SLO a second, at 3.50 an hour."""
    found = figures(trial_costs(published("h200-bakeoff", "r2-reference-2"), Prices(gpu_hour=3.5), TokenPrices(), 1))
    assert found == pytest.approx({
        Figure.HOUR: 3.5, Figure.OUTPUT: 0.756799, Figure.TOKENS: 0.108094, Figure.REQUESTS: 0.154549,
        Figure.GOODPUT: 0.155556,
    }, rel=1e-5)  # fmt: skip


def test_an_api_bills_what_arithmetic_by_hand_says():
    """17,941.8 prompt tokens at 0.20 and 3,126.37 output tokens at 0.60 a million are 19.671 an hour."""
    api = TokenPrices(input=0.2, output=0.6)
    found = figures(trial_costs(published("h200-served-chat", "r2-vllm-1"), Prices(gpu_hour=3.5), api, 1))
    assert found[Figure.API_HOUR] == pytest.approx(19.6710552, rel=1e-6)
    assert found[Figure.BREAK_EVEN] == pytest.approx(0.1779264, rel=1e-6)


def test_sessions_and_cached_tokens_equal_arithmetic_by_hand():
    """1,003.47 sessions an hour at 0.40; of 2,403.57 prompt tokens a second 200.725 are not cached."""
    api = TokenPrices(input=2.0, cached=0.2, output=10.0)
    found = figures(trial_costs(published("agents-cpu", "r1-reference-40"), Prices(machine_hour=0.4), api))
    assert found[Figure.SESSION] == pytest.approx(0.000398617, rel=1e-5)
    assert found[Figure.OUTPUT] == pytest.approx(4.410484, rel=1e-6)
    assert found[Figure.API_HOUR] == pytest.approx(3.9381984, rel=1e-6)


def test_an_engine_whose_tokens_are_billed_costs_the_same_for_each_of_them():
    slow, fast = (
        trial_costs(
            rates(generated_tokens_per_s=rate, prompt_tokens_per_s=3 * rate), Prices(input=1, output=5), TokenPrices()
        )
        for rate in (10.0, 1000.0)
    )
    assert slow[Figure.OUTPUT].value == fast[Figure.OUTPUT].value == pytest.approx(3 * 1 + 5)
    assert slow[Figure.TOKENS].value == pytest.approx((3 * 1 + 5) / 4)


def test_all_stated_prices_are_added():
    prices = Prices(gpu_hour=2.0, machine_hour=0.5, output=1.0)
    found = trial_costs(rates(generated_tokens_per_s=1e6 / 3600), prices, TokenPrices(), 4)
    assert found[Figure.HOUR].value == pytest.approx(4 * 2.0 + 0.5 + 1.0)


def test_cached_tokens_cost_what_others_do_unless_they_have_a_price():
    seen = rates(generated_tokens_per_s=1.0, prompt_tokens_per_s=1000.0, uncached_prompt_tokens_per_s=400.0)
    hours = {
        cached: trial_costs(seen, Prices(input=2.0, cached=cached), TokenPrices())[Figure.HOUR].value
        for cached in (None, 0.0, 0.5)
    }
    assert hours == pytest.approx({None: 7.2, 0.0: 2.88, 0.5: 3.96})


def test_only_hardware_must_pay_beside_an_api():
    """Own tokens cost 3.6 an hour beside 7.2, so hardware of 0.9 pays from a quarter of the time on."""
    seen, api = rates(generated_tokens_per_s=1000.0), TokenPrices(output=2.0)
    for hour, share in ((0.0, 0.0), (0.9, 0.25), (7.2, 2.0)):
        found = trial_costs(seen, Prices(machine_hour=hour, output=1.0), api)
        assert found[Figure.BREAK_EVEN].value == pytest.approx(share)
    dearer = trial_costs(seen, Prices(machine_hour=1.0, output=2.0), api)[Figure.BREAK_EVEN]
    assert (dearer.value, dearer.reason) == (None, "the engine's own tokens cost no less than the API bills")


def test_a_given_price_of_the_api_leaves_the_others_of_the_experiment(tmp_path: Path):
    run = two_engines(tmp_path, api_prices=TokenPrices(input=1.0, output=2.0))
    both, changed = (costs([run], Prices(machine_hour=1.0), api)[0] for api in (None, TokenPrices(output=4.0)))
    hours = [entry.figures[Figure.API_HOUR].centre for entry in (both, changed)]
    rate = run.cells[0].intervals["output_tokens_per_s"].centre
    assert hours[1] - hours[0] == pytest.approx(2.0 * rate * 3600 / 1e6, rel=0.01)


def test_what_is_unknown_has_a_reason():
    found = trial_costs(rates(generated_tokens_per_s=0.0, requests_per_s=1.0), Prices(gpu_hour=3.5), TokenPrices())
    assert "--price gpus" in (found[Figure.HOUR].reason or "")
    found = trial_costs(rates(generated_tokens_per_s=0.0), Prices(machine_hour=1.0), TokenPrices(input=1.0))
    assert found[Figure.OUTPUT].reason == "no output token"
    assert found[Figure.BREAK_EVEN].reason == "unknown"
    free = trial_costs(rates(prompt_tokens_per_s=1.0), Prices(machine_hour=1.0), TokenPrices(input=0.0))
    assert free[Figure.BREAK_EVEN].reason == "the engine's own tokens cost no less than the API bills"


def two_engines(tmp_path: Path, **changes: object) -> Run:
    sheet = Sheet(engines={"fast": FAST, "slow": SLOW}, invalid=(), **changes)  # type: ignore[arg-type]
    return results.load(build_run(tmp_path, sheet))


def printed(entries: list[CellCost], width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_costs(entries, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_intervals_are_those_of_the_rates_turned_over(tmp_path: Path):
    run = two_engines(tmp_path)
    for entry, cell in zip(costs([run], Prices(machine_hour=0.36)), run.cells, strict=True):
        rate, cost = cell.intervals["output_tokens_per_s"], entry.figures[Figure.OUTPUT]
        assert cost.centre == pytest.approx(100 / rate.centre)
        assert rate.low is not None
        assert cost.high == pytest.approx(100 / rate.low)


def test_gpus_are_those_whose_memory_the_engine_took(tmp_path: Path):
    run = taking_gpus(two_engines(tmp_path), 2)
    (first, *_) = costs([run], Prices(gpu_hour=3.5))
    assert (first.gpus, first.figures[Figure.HOUR].centre) == (2, pytest.approx(7.0))
    (first, *_) = costs([run], Prices(gpu_hour=3.5, gpus=8))
    assert (first.gpus, first.figures[Figure.HOUR].centre) == (8, pytest.approx(28.0))


@pytest.mark.slow
def test_gpus_of_a_replica_that_was_started_under_load_are_not_known(tmp_path: Path):
    run = taking_gpus(two_engines(tmp_path), 2)
    amend_trial(run.path, run.finished[0].record.id, faults=[{"action": "start", "replica": "b", "begun_ns": 1}])
    costs_of = {cost.engine: cost for cost in costs([results.load(run.path)], Prices(gpu_hour=3.5))}
    first = costs_of[run.finished[0].record.engine]
    assert first.gpus is None
    assert "--price gpus" in first.reasons[Figure.HOUR]


def test_an_engine_without_a_price_is_named_and_others_are_not_lost(tmp_path: Path):
    run = two_engines(tmp_path, prices={"fast": Prices(machine_hour=1.0)})
    entries = costs([run])
    assert {entry.engine for entry in entries if entry.figures} == {"fast"}
    text = printed(entries)
    assert "it has no price" in text
    assert "slow, c=1" in text
    with pytest.raises(BadPrice, match="give --price"):
        costs([two_engines(tmp_path / "none")])
    with pytest.raises(NotComparable, match="folder of a run"):
        costs([])


def test_a_given_price_wins_over_that_of_the_experiment_and_others_stay(tmp_path: Path):
    stated = {name: Prices(machine_hour=1.0, output=2.0) for name in ("fast", "slow")}
    (first, *_) = costs([two_engines(tmp_path, prices=stated)], Prices(output=3.0))
    assert first.prices == Prices(machine_hour=1.0, output=3.0)


def test_a_narrow_terminal_shows_centres_without_intervals(tmp_path: Path):
    entries = costs([two_engines(tmp_path)], Prices(machine_hour=1.0), TokenPrices(output=5.0))
    wide, narrow = printed(entries), printed(entries, 70)
    assert "[" in wide
    assert "break-even" in wide
    assert "[" not in narrow
    assert "a terminal of 82 columns shows the intervals" in narrow


@pytest.mark.slow
def test_the_report_has_costs_if_the_experiment_states_prices(tmp_path: Path):
    run = two_engines(tmp_path, prices={"fast": Prices(machine_hour=1.0)}, api_prices=TokenPrices(output=5.0))
    page = render_html(run)
    assert 'id="cost"' in page
    assert "break-even" in page
    assert "it has no price" in page
    assert 'id="cost"' not in render_html(two_engines(tmp_path / "none"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["gpu=3"], "one of cached, gpu-hour, gpus, input, machine-hour, output"),
        (["gpu-hour"], "gpu-hour= is no price; write a number, such as gpu-hour=2"),
        (["gpu-hour=a lot"], "gpu-hour=a lot is no price"),
        (["gpus=1.5"], "gpus=1.5 is no price"),
        (["gpus=0"], "gpus=0 is no price"),
        (["output=-1"], "output=-1 is no price"),
        (["output=nan"], "output=nan is no price"),
        (["gpu-hour=1", "gpu_hour=2"], "stated twice"),
        ({"gpu": 3}, "one of cached"),
    ],
)
def test_a_malformed_price_is_refused_in_one_line(given: list[str] | dict[str, float], said: str):
    with pytest.raises(BadPrice, match=said) as refused:
        prices_from(given)
    assert "\n" not in str(refused.value)


def test_prices_are_written_with_dashes_or_underscores():
    assert prices_from(["gpu_hour=3.5", "machine-hour=1", "gpus=2"]) == Prices(gpu_hour=3.5, machine_hour=1.0, gpus=2)
    assert prices_from({"gpu_hour": 3.5, "gpus": 2}) == Prices(gpu_hour=3.5, gpus=2)
    assert prices_from("output=2") == Prices(output=2.0)
    assert prices_from(None) == Prices()
    assert token_prices_from(["input=1", "cached=0.1", "output=5"]) == TokenPrices(input=1.0, cached=0.1, output=5.0)
    with pytest.raises(BadPrice, match="one of cached, input, output"):
        token_prices_from(["gpu-hour=1"])


def test_a_run_without_a_valid_trial_is_no_evidence(tmp_path: Path) -> None:
    run = results.load(
        build_run(tmp_path, Sheet(repeats=1, invalid=tuple(range(8)), prices={"reference": Prices(machine_hour=1.0)}))
    )
    with pytest.raises(NoEvidence, match="nothing can be costed: no valid trial"):
        costs([run])
