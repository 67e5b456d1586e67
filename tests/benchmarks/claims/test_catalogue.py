"""Every claim of the catalogue is well-formed, refers to what exists, and changes its verdict with its data."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from bakeoff.results.statistics.interval import Interval
from benchmarks.claims.interpreter import trials
from benchmarks.claims.interpreter.catalogue import Entry, experiment_of, load_catalogue
from benchmarks.claims.interpreter.claim import Case, Contrasted, Expected, Side
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.lab import result_of
from benchmarks.claims.interpreter.measurement import Measurement, computed, contrasted_measurement
from benchmarks.claims.interpreter.trials import published
from benchmarks.claims.interpreter.verdict import Estimate, Outcome, Verdict, verdict

ENTRIES = load_catalogue()
each_claim = pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])


class Synthetic:
    """A lab that measures the values that a test chooses; nothing is missing unless the test says so."""

    def __init__(self, value_of: Callable[[Case], float], missing: str | None = None) -> None:
        self._value_of, self._missing = value_of, missing

    def missing(self, entry: Entry, case: Case) -> str | None:
        del entry, case
        return self._missing

    def cost_s(self, entry: Entry, cases: Sequence[Case]) -> float:
        del entry, cases
        return 0.0

    def measure(self, entry: Entry, case: Case) -> Measurement:
        """Run the procedure's own computation on data that yields the value."""
        del entry
        value = self._value_of(case)
        if case.arithmetic is not None:
            changed = msgspec.structs.replace(case.arithmetic, expression=repr(value), beside={})
            return computed(changed)
        if contrasted := case.experiment or case.published:
            numbers = [value] if contrasted.over is None else [2.0 * value, 2.0]
            values = {
                side.text: {repeat: number for repeat in (1, 2, 3)}  # noqa: C420  (the keys are int, not literals)
                for side, number in zip(contrasted.sides, numbers, strict=True)
            }
            return contrasted_measurement(contrasted, values, ["run"], "machine")
        return Measurement(Estimate(Interval(value, value, value, 3)))


def inside(expected: Expected) -> float:
    if expected.at_least is not None and expected.at_most is not None:
        return (expected.at_least + expected.at_most) / 2
    return expected.at_least * 1.2 if expected.at_least is not None else (expected.at_most or 0.0) * 0.8


def outside(expected: Expected) -> float:
    return expected.high * 1.5 if expected.at_most is not None else expected.low * 0.5


def judged(entry: Entry, value_of: Callable[[Case], float], missing: str | None = None) -> Verdict:
    lab = Synthetic(value_of, missing)
    return verdict([result_of(entry, case, lab) for case in entry.claim.cases])


@each_claim
def test_the_data_decide_the_verdict(entry: Entry):
    good, bad = inside(entry.claim.expected), outside(entry.claim.expected)
    assert judged(entry, lambda _: good) is Verdict.REPRODUCED
    assert judged(entry, lambda _: bad) is Verdict.NOT_REPRODUCED
    assert judged(entry, lambda _: good, "a GPU") is Verdict.NOT_TESTABLE
    if any(not case.as_claimed for case in entry.claim.cases):
        assert judged(entry, lambda case: bad if case.as_claimed else good) is Verdict.OTHER_CONDITIONS


@each_claim
def test_what_a_claim_refers_to_exists(entry: Entry):
    assert any(case.as_claimed for case in entry.claim.cases)
    for case in entry.claim.cases:
        for side in case.experiment.sides if case.experiment else []:
            experiment = experiment_of(entry.experiment(side.run), side.run)
            assert side.engine in {engine.name for engine in experiment.engines}
            assert side.load in {load.label for load in experiment.loads}
        if case.published is not None:
            assert published(case.published).estimate is not None
        if case.arithmetic is not None:
            assert computed(case.arithmetic).estimate is not None


def test_offline_figures_give_tokens_per_second_by_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trials, "PUBLISHED", tmp_path)
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline" / "README.md").write_text("# offline\n\na GPU; today; more\n")
    for name, seconds in (("bf16", (2.0, 4.0)), ("int4", (1.0, 2.0))):
        cells = [{"engine": "ours", "cell": [8, 64, 16], "repeat": n, "seconds": s} for n, s in enumerate(seconds)]
        other_cells = [
            {"engine": "machine", "cell": None},
            {"engine": "vllm", "cell": [8, 64, 16], "repeat": 0, "seconds": 9.0},
            {"engine": "ours", "cell": [1, 64, 16], "repeat": 0, "seconds": 9.0},
            {"engine": "ours", "cell": [8, 64, 16], "repeat": 2, "error": "no memory"},
        ]
        (tmp_path / "offline" / f"{name}.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in cells + other_cells))
    sides = [Side(f"offline/{name}", "ours", "8,64,16") for name in ("int4", "bf16")]
    measured = published(Contrasted("output_tokens_per_s", *sides))
    assert measured.values[sides[0].text] == {0: 8 * 16 / 1.0, 1: 8 * 16 / 2.0}
    assert measured.estimate is not None
    assert measured.estimate.interval.centre == pytest.approx(2.0)
    assert measured.machine == "a GPU; today"
    assert published(Contrasted("prompt_tokens_per_s", sides[0])).values[sides[0].text][0] == 8 * 64
    assert not trials.is_published("offline/fp8")


def test_a_claim_changes_with_the_published_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trials, "PUBLISHED", tmp_path)
    (entry,) = load_catalogue(names=["speculation-7b-1b"])
    digests = {entry.digest}
    figures = tmp_path / "speculation-engines-chat" / "trials.csv"
    figures.parent.mkdir()
    for text in ("repeat\n1\n", "repeat\n2\n"):
        figures.write_text(text)
        digests.add(entry.digest)
    assert len(digests) == 3


GOOD = """
sentence = "A is faster than B."
quantity = "output tokens/s of A over B"
conditions = "any"
expected = { at_least = 2.0 }
source = [{ title = "Book", kind = "book" }]

[[cases]]
title = "here"
arithmetic = { expression = "a / 2", inputs = { a = 6 } }
"""


def test_claims_of_ones_own_are_added(tmp_path: Path):
    (tmp_path / "mine.toml").write_text(GOOD)
    (entry,) = load_catalogue([tmp_path], ["mine"])
    result = result_of(entry, entry.claim.cases[0], Synthetic(lambda _: 3.0))
    assert (entry.name, result.outcome) == ("mine", Outcome.INSIDE)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sentence", "sentense", "mine.toml has no option 'sentense'; did you mean 'sentence'?"),
        ("at_least = 2.0", "", "mine.toml: expected needs at_least, at_most or both"),
        ("at_least = 2.0", "at_least = 2.0, at_most = 1.0", "mine.toml: expected.at_least is above expected.at_most"),
        ("at_least = 2.0", "at_least = 2.0, margin = -0.1", "mine.toml: expected.margin must not be negative"),
        ('at_least = 2.0', 'at_least = "2"', "mine.toml: Expected `float"),
        ('{ title = "Book", kind = "book" }', "", "mine.toml: source is empty"),
        ("arithmetic = {", "absent = 'x'\narithmetic = {", "mine.toml: cases[0] has absent, arithmetic; give"),
        ('"a / 2"', '"a // 2"', "mine.toml: cases[0].arithmetic.expression: 'a // 2' has a part that is not allowed"),
        ('"a / 2"', '"b / 2"', "mine.toml: cases[0].arithmetic.expression: 'b' is not an input"),
        ('"a / 2"', '"open(a)"', "mine.toml: cases[0].arithmetic.expression: unknown function 'open'"),
        ('"a / 2"', '"a /"', "mine.toml: cases[0].arithmetic.expression: 'a /' is not an expression"),
        (
            'arithmetic = { expression = "a / 2", inputs = { a = 6 } }',
            'experiment = { metric = "speed", of = { run = "r", engine = "e", load = "c=1" } }',
            "mine.toml: cases[0].experiment.metric: no metric is called 'speed'",
        ),
        (
            'arithmetic = { expression = "a / 2", inputs = { a = 6 } }',
            'evaluation = { quantity = "taste", model = "m" }',
            "mine.toml: cases[0].evaluation.quantity: 'taste' is none of",
        ),
        ("[[cases]]", "[[cases", "mine.toml is not TOML"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str):
    assert old in GOOD
    (tmp_path / "mine.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(BadClaim) as error:
        load_catalogue([tmp_path])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_names_folders_and_runs_are_refused(tmp_path: Path):
    with pytest.raises(BadClaim, match="there is no claim 'nothing'"):
        load_catalogue([], ["nothing"])
    with pytest.raises(BadClaim, match="is not a folder"):
        load_catalogue([tmp_path / "gone"])
    with pytest.raises(BadClaim, match=r"run 'nothing' is not a file of"):
        ENTRIES[0].experiment("nothing")
