"""A profile that differs from the trials that it is to explain says so in its headline."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bakeoff import results
from bakeoff.results.attribution import Attribution
from bakeoff.results.metrics import Value
from bakeoff.results.records import Load, RequestRecord, Verdict
from bakeoff.results.report.verdict import verdict
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.deviation import Deviation, Figure, deviation_of
from bakeoff.results.text.attribution import deviation_sentence, overhead_line
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run
from tests.results.step_simulation import Simulated, simulate

SHEET = Sheet(engines={"sim": FAST}, loads=LOADS[1:2], repeats=1, requests=8, invalid=(), regret=None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> results.Run:
    """One trial of one engine."""
    return results.load(build_run(tmp_path_factory.mktemp("runs"), SHEET))


def later(request: RequestRecord, factor: float) -> RequestRecord:
    """The same request, whose tokens took a multiple of their time."""
    chunk_ns = [request.planned_ns + round(factor * (t_ns - request.planned_ns)) for t_ns in request.chunk_ns]
    return msgspec.structs.replace(request, chunk_ns=chunk_ns)


def profiled(measured: Trial, *, e2e: float = 1.0, output: float = 1.0, **changes: object) -> Trial:
    """A profiled trial whose mean E2E and output rate are multiples of those of a measured one."""
    rate = measured.metrics["output_tokens_per_s"].value
    assert rate is not None
    return msgspec.structs.replace(
        measured,
        record=msgspec.structs.replace(measured.record, profiled=True, **changes),
        requests=Requests(later(request, e2e) for request in measured.requests),
        metrics={**measured.metrics, "output_tokens_per_s": Value(rate * output)},
    )


@pytest.mark.parametrize(
    ("e2e", "output", "words"),
    [
        (2.7, 0.5, "2.7 times slower than the measured one (mean E2E "), (1.0, 0.37, "2.7 times slower than the "),
        (1.1, 0.7, "30 % slower than the measured one (output "), (0.6, 1.0, "40 % faster than the measured one ("),
        (1.25, 1.0, "25 % slower than the measured one (mean E2E "), (1.15, 0.85, ""), (0.85, 1.15, ""),
    ],
)  # fmt: skip
def test_a_figure_that_differs_by_more_than_a_fifth_is_a_deviation(
    run: results.Run, e2e: float, output: float, words: str
) -> None:
    deviation = deviation_of(profiled(run.finished[0], e2e=e2e, output=output), run.finished)
    assert (deviation is None) == (words == "")
    if deviation is not None:
        assert f"The profiled trial was {words}" in deviation_sentence(deviation)


def test_only_valid_trials_of_the_same_engine_and_load_are_compared(run: results.Run) -> None:
    slow = profiled(run.finished[0], e2e=3.0)
    assert deviation_of(slow, run.finished) is not None
    assert deviation_of(slow, []) is None
    for change in ({"engine": "b"}, {"load": Load(concurrency=9)}, {"verdict": Verdict.INVALID}):
        record = msgspec.structs.replace(run.finished[0].record, **change)
        assert deviation_of(slow, [msgspec.structs.replace(run.finished[0], record=record)]) is None


def test_the_sentence_names_the_figure_and_what_to_do() -> None:
    deviation = Deviation(Figure.MEAN_E2E, measured=0.503, profiled=1.35, trials=3)
    assert deviation_sentence(deviation) == (
        "The profiled trial was 2.7 times slower than the measured ones (mean E2E 1.35 s instead of 503 ms), so this "
        "may not explain them; repeat the profile on a quieter machine"
    )


def test_an_overhead_from_twofold_on_is_a_factor(run: results.Run) -> None:
    slow = profiled(run.finished[0], output=4.0)
    assert "(×4.0); ITL p50" in overhead_line(run.finished[0], slow)
    assert "(−75.0 %); ITL p50" in overhead_line(slow, run.finished[0])


def with_profile(path: Path, trials: list[Trial], attributions: list[Attribution]) -> results.Run:
    """The run as if it had these profiled trials."""
    run = results.load(path)
    vars(run).update(profiled=trials, attributions=attributions)
    return run


def test_the_bottleneck_is_the_headline_of_a_profile(run: results.Run) -> None:
    attribution = simulate(Simulated()).attribution()
    alike = verdict(with_profile(run.path, [profiled(run.finished[0])], [attribution]))
    assert alike.decided
    assert alike.sentence.startswith("Bottleneck: decode, ")
    doubtful = verdict(with_profile(run.path, [profiled(run.finished[0], e2e=2.7)], [attribution]))
    assert not doubtful.decided
    assert doubtful.sentence.startswith(f"{alike.sentence} The profiled trial was 2.7 times slower than ")
    assert doubtful.sentence.endswith("; repeat the profile on a quieter machine.")


def test_each_engine_has_its_bottleneck_and_repeated_engines_are_compared(tmp_path: Path) -> None:
    attribution = simulate(Simulated()).attribution()
    for repeats in (1, 3):
        sheet = replace(SHEET, engines={"a": FAST, "b": SLOW}, repeats=repeats, loads=LOADS[:2])
        path = build_run(tmp_path / str(repeats), sheet)
        trials = [profiled(trial) for trial in results.load(path).finished[:4]]
        run = with_profile(path, trials, [attribution] * 4)
        sentence = verdict(run).sentence
        if repeats == 1:
            assert sentence.startswith("c=4, a: Bottleneck: decode, ")
            assert ". c=4, b: Bottleneck: decode, " in sentence
            assert "c=1" not in sentence
        else:
            assert sentence.startswith("At c=4, a delivered ")
