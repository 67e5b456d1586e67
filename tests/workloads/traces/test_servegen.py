"""ServeGen: requests drawn from client tables keep the rates, bursts and lengths of the tables."""

import math
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from bakeoff.workloads.rng import Rng
from bakeoff.workloads.traces.servegen import renewal
from bakeoff.workloads.traces.servegen_tables import Window
from tests.workloads.traces.samples import read, refusal, times_s, write, write_servegen

TABLE = {"input_tokens": {100: 0.25, 200: 0.75}, "output_tokens": {7: 1.0}}


def window_rows(*rates: float, family: str = "Gamma", shape: float = 0.8) -> str:
    """A row for each 600 s, silent where the rate is 0."""
    laws = [f"{rate},1.0,{family},{shape},1.0" if rate else "0,0,,0,0" for rate in rates]
    return "".join(f"{600 * i},{law}\n" for i, law in enumerate(laws))


def squared_variation(family: str, shape: float) -> float:
    """Variance over squared mean of a family's gaps."""
    if family == "Weibull":
        return math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1
    return 1 / shape if family else 1.0


FAMILIES = [("Gamma", 0.05), ("Gamma", 0.5), ("Gamma", 30.0), ("Weibull", 0.4), ("", 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "shape"), FAMILIES)
def test_every_window_keeps_its_rate_however_bursty(family: str, shape: float) -> None:
    """If each client or window began with a whole gap, Gamma of shape 0.05 would send ten more requests each time.

    400 clients of 60, 300 and 60 requests: the standard deviation of such a sum is the root of requests · CV².
    """
    windows = [Window(600 * i, 600 * i + 600, rate, family, shape) for i, rate in enumerate((0.1, 0.5, 0.1))]
    counts = Counter(int(at // 600) for client in range(400) for at in renewal(windows, Rng("7", str(client))))
    for i, window in enumerate(windows):
        wanted = 400 * 600 * window.rate_per_s
        assert counts[i] == pytest.approx(wanted, abs=4 * math.sqrt(wanted * squared_variation(family, shape)))


@pytest.mark.parametrize(("family", "shape"), [("Gamma", 0.25), ("Weibull", 0.5), ("", 1.0)])
def test_gaps_have_the_familys_variation(family: str, shape: float) -> None:
    gaps = [b - a for a, b in pairwise(renewal([Window(0, 20_000, 1.0, family, shape)], Rng("3", family)))]
    variation = statistics.pstdev(gaps) / statistics.fmean(gaps)
    assert variation == pytest.approx(math.sqrt(squared_variation(family, shape)), rel=0.1)


def test_rows_of_all_clients_come_in_time_with_lengths_from_their_tables(tmp_path: Path) -> None:
    folder = tmp_path / "servegen"
    write_servegen(folder, window_rows(1.0, 0.0, 2.0), {"0": TABLE}, "a")
    other = {"input_tokens": {3: 1.0}, "output_tokens": {9: 0.5, 0: 0.5}}
    write_servegen(folder, window_rows(0.5, 0.5, 0.5, family="Weibull"), {"0": other}, "b", suffix=".gz")
    rows = read("servegen", folder)
    times = times_s(rows)
    assert len(times) == len(rows)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert {(row.input_tokens, row.output_tokens) for row in rows} == {(100, 7), (200, 7), (3, 9)}
    assert {row.session for row in rows} == {None}
    counts = Counter(row.input_tokens for row in rows)
    assert counts[200] / (counts[100] + counts[200]) == pytest.approx(0.75, abs=0.05)
    silent = [row for row, at in zip(rows, times, strict=True) if 602 < at < 1198]
    assert silent
    assert {row.input_tokens for row in silent} == {3}
    assert read("servegen", folder) == rows
    assert read("servegen", folder, seed="2") != rows


def test_a_part_of_the_time_and_of_the_clients_can_be_taken(tmp_path: Path) -> None:
    folder = tmp_path / "servegen"
    for name, rates, tokens in (("a", (0.1, 3.0), 1), ("b", (1.0, 1.0), 2), ("c", (0.0, 0.0), 3)):
        table = {"input_tokens": {tokens: 1.0}, "output_tokens": {1: 1.0}}
        write_servegen(folder, window_rows(*rates), {"0": table}, name)
    assert {row.input_tokens for row in read("servegen", folder)} == {1, 2}
    assert {row.input_tokens for row in read("servegen", folder, clients=1)} == {1}
    early = read("servegen", folder, clients=1, duration_s=600)
    assert {row.input_tokens for row in early} == {2}
    late = read("servegen", folder, start_s=900, duration_s=200)
    assert times_s(late)[-1] < 200
    assert len(late) == pytest.approx(800, abs=4 * math.sqrt(800 / 0.8))
    both_clients = read("servegen", folder, duration_s=600)
    alone = times_s(early)
    beside = times_s([row for row in both_clients if row.input_tokens == 2])
    assert [at - beside[0] for at in beside] == pytest.approx(alone)  # omitting one client does not change the other


def test_lengths_come_from_the_window_else_the_nearest_else_another_client(tmp_path: Path) -> None:
    folder = tmp_path / "servegen"
    none = {"input_tokens": {}, "output_tokens": {}}

    def table_of(tokens: int) -> dict[str, dict[int, float]]:
        return {"input_tokens": {tokens: 1.0}, "output_tokens": {1: 1.0}}

    write_servegen(
        folder, window_rows(*[1.0] * 5), {"0": none, "600": table_of(11), "1200": none, "1800": table_of(12)}, "a"
    )
    alone = read("servegen", folder)
    for row, at in zip(alone, times_s(alone), strict=True):  # the first came some seconds after the recording began
        assert row.input_tokens in ({11} if at < 1700 else {11, 12} if at < 1800 else {12})
    write_servegen(folder, window_rows(*[1.0] * 5), {"0": none}, "b")
    two_clients = read("servegen", folder)
    assert len(two_clients) > 1.8 * len(alone)
    assert {row.input_tokens for row in two_clients} == {11, 12}


@pytest.mark.parametrize(
    ("trace", "file_and_message"),
    [
        ("0,1,1,Gamma,1\n", "trace.csv, row 1: has 5 fields, not start, rate, CV, family, shape, scale"),
        ("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "trace.csv, row 2: does not begin after the previous window; sort"),
        ("0,nan,1,Gamma,1,1\n", "trace.csv, row 1: rate must be a number, not 'nan'"),
        ("0,-1,1,Gamma,1,1\n", "trace.csv, row 1: rate must be from 0 to 1e+11, not '-1'"),
        ("0,1,1,Pareto,1,1\n", "trace.csv, row 1: family 'Pareto' must be Gamma, Weibull or empty"),
        ("0,1,1,Weibull,0.001,1\n", "trace.csv, row 1: shape must be from 0.01 to 1e+06, not '0.001'"),
        ("", "trace.csv: is empty"),
    ],
)
def test_a_wrong_window_is_refused_by_its_row(trace: str, file_and_message: str, tmp_path: Path) -> None:
    folder = write_servegen(tmp_path / "servegen", trace, {"0": TABLE})
    assert refusal("servegen", folder).startswith(f"/chunk-1-{file_and_message}")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ('"input_tokens": "{5: 1.0}"', ": Object missing required field `output_tokens` - at `$[...]`"),
        ('"input_tokens": "{0: 1.0}", "output_tokens": "{5: 1.0}"', ", window 0: tokens must be a whole number from 1"),
        ('"input_tokens": "{5: 0.5}", "output_tokens": "{5: 1.0}"', ", window 0: the probabilities add up to 0.5, not"),
        ('"input_tokens": "{5: -1}", "output_tokens": "{5: 1.0}"', ", window 0: probability must be from 0 to 1e+11"),
        ('"input_tokens": "{5}", "output_tokens": "{5: 1.0}"', ", window 0: '5' is not tokens: probability"),
        ('"input_tokens": "5: 1", "output_tokens": "{5: 1.0}"', ", window 0: '5: 1' is not a table {tokens: probabil"),
        ('"input_tokens": "{5: 1}", "output_tokens": "{0: 1.0}"', ", window 0: no answer is longer than 0 tokens"),
        ('"input_tokens": "{}", "output_tokens": "{}"', ": has no lengths, nor has any other client's file"),
    ],
)
def test_a_wrong_length_table_is_refused_by_its_window(tables: str, message: str, tmp_path: Path) -> None:
    folder = write_servegen(tmp_path / "servegen", window_rows(1.0), {"0": TABLE})
    write(folder / "chunk-1-dataset.json", f'{{"0": {{{tables}}}}}')
    assert refusal("servegen", folder).startswith(f"/chunk-1-dataset.json{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"am": {"input_tokens": "{}", "output_tokens": "{}"}}', ", window 'am': window must be a number, not 'am'"),
        ("{}", ": has no lengths, nor has any other client's file"),
        ("[]", ": Expected `object`, got `array`"),
        ("", ": is empty"),
    ],
)
def test_a_dataset_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    folder = write_servegen(tmp_path / "servegen", window_rows(1.0), {"0": TABLE})
    write(folder / "chunk-1-dataset.json", text)
    assert refusal("servegen", folder) == f"/chunk-1-dataset.json{message}"


def test_a_folder_that_is_none_or_lacks_a_file_is_refused(tmp_path: Path) -> None:
    assert refusal("servegen", tmp_path / "absent").startswith(": does not exist; give a folder of chunk-*-trace.csv")
    assert refusal("servegen", write(tmp_path / "file", "x")).startswith(": is a file; give a folder of chunk-*")
    (tmp_path / "empty").mkdir()
    assert refusal("servegen", tmp_path / "empty") == ": has no client (chunk-*-trace.csv)"
    folder = write_servegen(tmp_path / "half", window_rows(1.0), {"0": TABLE})
    (folder / "chunk-1-dataset.json").unlink()
    assert refusal("servegen", folder) == (
        "/chunk-1-trace.csv: has no length distributions beside it; fetch chunk-1-dataset.json too"
    )


def test_a_time_without_requests_is_refused(tmp_path: Path) -> None:
    folder = write_servegen(tmp_path / "servegen", window_rows(1.0, 0.0), {"0": TABLE})
    assert refusal("servegen", folder, start_s=700.0) == (
        ": has no requests from 700 s on for inf s; it was recorded for 1200 s; change start_s or duration_s"
    )
    assert "draws none" in refusal("servegen", folder, duration_s=1e-9)
