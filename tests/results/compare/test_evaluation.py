"""Perplexities of two evaluations, compared piece by piece: by hand, on the command line, and every error message."""

import json
import math
from pathlib import Path

import msgspec
import pytest

from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.evaluation import (
    Evaluation,
    PieceSum,
    compare_evaluations,
    perplexity_config,
    read_evaluation,
)
from bakeoff.results.compare.gate import Outcome, judge_evaluations
from bakeoff.results.errors import NoEvidence, NotComparable, NotImportable
from bakeoff.results.statistics import Judgement
from bakeoff.results.statistics.interval import Interval
from tests.harness.cli.test_cli import in_process as bakeoff

SIZES = [100, 100, 100, 50]
NATS = [200.0, 310.0, 250.0, 110.0]


def evaluation(nats: list[float], **changes: object) -> Evaluation:
    interval = Interval(1.0, 0.9, 1.1, 4)
    whole = Evaluation(
        model="tiny", url=None, dtype="float32", kv_cache_dtype="auto", reference=None, text=None, text_sha256="1a",
        tokens_sha256="2b", pieces=len(nats), tokens=sum(SIZES), perplexity=interval, nats_per_token=interval,
        top1_match=interval, reference_perplexity=None, perplexity_ratio=None, kl_nats_per_token=None, kl_absent=None,
        token_match=None, near_ties=None, choices=None,
        piece_sums=[PieceSum(size, piece_nats) for size, piece_nats in zip(SIZES, nats, strict=False)],
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


@pytest.fixture
def files(tmp_path: Path):
    """`files(nats, **changes)` writes a baseline, and a candidate with these nats."""

    def write(nats: list[float], **changes: object) -> tuple[Path, Path]:
        a, b = tmp_path / "a.json", tmp_path / "b.json"
        a.write_bytes(msgspec.json.encode(evaluation(NATS)))
        b.write_bytes(msgspec.json.encode(evaluation(nats, **changes)))
        return a, b

    return write


def config(**changes: object) -> ComparisonConfig:
    return msgspec.structs.replace(perplexity_config(0.05, None), **changes)


def test_the_ratio_and_its_interval_are_those_of_paired_pieces(files):
    # differences 2, 4, 3 and 1: 10 nats in 350 tokens; residuals −6/7, 8/7, 1/7 and −3/7; t of 3 degrees: 3.18245
    a, b = files([202.0, 314.0, 253.0, 111.0], kv_cache_dtype="int8")
    compared = compare_evaluations(a, b, config())
    assert (compared.a, compared.b) == ("tiny in float32", "tiny in float32, KV cache int8")
    comparison = compared.primary
    assert comparison.ratio is not None
    half = 3.182446 * math.sqrt(4 / 3 * (36 + 64 + 1 + 9) / 49) / 350
    assert comparison.ratio.centre == pytest.approx(math.exp(10 / 350))
    assert comparison.ratio.low == pytest.approx(math.exp(10 / 350 - half))
    assert comparison.ratio.high == pytest.approx(math.exp(10 / 350 + half))
    assert (comparison.metric, comparison.level) == ("perplexity", "350 tokens of the built-in text")
    assert comparison.evidence is not None
    # of 16 choices of signs, only the two with equal signs are as extreme
    assert comparison.evidence.permutation_p == 2 / 16
    assert comparison.judgement is Judgement.WORSE  # the p-value is the smallest possible
    assert judge_evaluations(a, b, config()).outcome is Outcome.REGRESSION


def test_equal_evaluations_are_no_regression_and_better_ones_neither(files):
    assert judge_evaluations(*files(NATS), config()).outcome is Outcome.NO_REGRESSION
    verdict = judge_evaluations(*files([piece_nats - 3 for piece_nats in NATS]), config())
    assert verdict.outcome is Outcome.NO_REGRESSION
    assert verdict.compared.primary.judgement is Judgement.BETTER


def test_noise_beyond_the_band_is_undecided(files):
    verdict = judge_evaluations(*files([210.0, 300.0, 255.0, 108.0]), config())
    assert verdict.outcome is Outcome.CANNOT_TELL
    assert "these pieces can detect a change of" in verdict.sentence
    assert "a longer text a smaller one" in verdict.sentence


def test_the_band_is_one_percent_unless_given():
    configs = [perplexity_config(0.01, band) for band in (None, 0.2, "2%", ["perplexity=4%"])]
    assert [parsed.bands.get("perplexity", parsed.band) for parsed in configs] == [0.01, 0.2, 0.02, 0.04]
    with pytest.raises(NotComparable, match="unknown metric 'ttft_p99'; known: perplexity"):
        perplexity_config(0.01, ["ttft_p99=1%"])


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"text_sha256": "x"}, NotComparable, "are of different texts; evaluate both with the same --text"),
        (
            {"tokens_sha256": "x"},
            NotComparable,
            "different tokens of one text; evaluate models with the same tokenizer",
        ),
        ({"piece_sums": [PieceSum(350, 870.0)]}, NotComparable, "different tokens of one text"),
    ],
)
def test_different_tokens_are_not_compared(files, changes, error, complaint):
    with pytest.raises(error, match=complaint):
        compare_evaluations(*files(NATS, **changes), config())


def test_one_piece_is_no_evidence(tmp_path: Path):
    path = tmp_path / "one.json"
    path.write_bytes(msgspec.json.encode(evaluation(NATS[:1])))
    with pytest.raises(NoEvidence, match="the text has one piece, so its noise is unknown; evaluate a longer one"):
        compare_evaluations(path, path, config())


def test_files_that_are_no_evaluations_are_refused(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(NotImportable, match=r"run.json is not an evaluation \(.*; write it with bakeoff models eval"):
        read_evaluation(tmp_path / "run.json")
    with pytest.raises(NotImportable, match=r"none.json cannot be read: No such file"):
        read_evaluation(tmp_path / "none.json")


def gate(a: Path, b: Path, *more: str) -> int:
    return bakeoff("gate", "--baseline", str(a), "--candidate", str(b), "--metric", "perplexity", *more)


def test_the_gate_has_exit_codes_and_files_for_it(files, tmp_path: Path, capsys):
    worse = files([piece_nats * 1.05 for piece_nats in NATS], url="http://h:8000", model="served")
    outputs = ["--markdown", str(tmp_path / "m"), "--junit", str(tmp_path / "x"), "--github"]
    assert gate(*worse, *outputs) == 1
    printed = capsys.readouterr().out
    assert "REGRESSION: perplexity at 350 tokens of the built-in text: served at http://h:8000 has 1.13" in printed
    assert "● perplexity" in printed
    assert "token match" not in printed
    assert "::error title=bakeoff gate" in printed
    assert "❌ bakeoff gate: regression" in (tmp_path / "m").read_text()
    assert 'type="regression"' in (tmp_path / "x").read_text()
    same = files(NATS)
    assert gate(*same, "--json") == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "no regression"
    assert gate(*files([210.0, 300.0, 255.0, 108.0])) == 2


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--metric", "ttft_p50_s"], "perplexity compares one --baseline FILE with one --candidate FILE"),
        (["--primary", "perplexity"], "leave out experiments, --primary and other metrics"),
        (["--baseline", "c.json"], "perplexity compares one --baseline FILE"),
        (["--band", "perplexity=1pp"], "give the band of perplexity in %"),
    ],
)
def test_what_contradicts_it_is_one_line_and_exit_3(files, more, complaint, capsys):
    assert gate(*files(NATS), *more) == 3
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
