"""What `benchmarks/gpu/offline.py` measures, skips and shows, without an engine."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff.harness.host.gpu import open_gpus
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.dummy import DummyWeights
from bakeoff.reference_engine.models.config_readers import config_from_hf
from benchmarks.gpu import offline
from benchmarks.gpu.offline import (
    DIVIDED_GOALS,
    LLAMA_8B,
    PLAN_ERROR,
    Cell,
    Results,
    energy_table,
    measure,
    options_of,
    parse,
    plan_table,
    planned_s,
    ratio_of,
    setup_of,
    table,
)
from benchmarks.gpu.parts.checkpoint import FormatName, write_checkpoint
from benchmarks.gpu.sides.side import OutOfTimeError
from tests.harness.fake_nvml import FakeNvml

SMALL, PREFILL = Cell(2, 8, 4), Cell(4, 16, 1)
SETUPS = {"ours": "a", "vllm": "b", "hf": "c", "machine": "d"}


class FakeSide:
    """Answers in 0.1 s, then 0.2 s, …; each answer may be replaced by an error or by running out of time."""

    def __init__(self, *answers: dict[str, Any] | Exception | None):
        self.answers, self.asked = list(answers), list[tuple[int, int, int]]()
        self.seconds = (number / 10 for number in itertools.count(1))

    def ask(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        self.asked.append((len(prompts), len(prompts[0]), output))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer or {"seconds": next(self.seconds)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def measured(path: Path, side: FakeSide, engine: str = "ours", repeats: int = 2) -> Results:
    results = Results(path, SETUPS)
    measure(engine, side, results.missing(engine, [SMALL, PREFILL], repeats), results, 100)
    return results


def test_each_cell_is_warmed_up_and_measured_as_often_as_asked(path: Path):
    side = FakeSide()
    results = measured(path, side)
    assert side.asked == [(2, 8, 4)] * 3 + [(4, 16, 1)] * 3
    assert results.median("ours", SMALL) == pytest.approx(0.25)
    assert results.missing("ours", [SMALL, PREFILL], 2) == []


def test_transformers_is_warmed_up_with_few_tokens(path: Path):
    side = FakeSide()
    results = Results(path, SETUPS)
    measure("hf", side, [(Cell(2, 8, 50), 0)], results, 100)
    assert side.asked == [(2, 8, 4), (2, 8, 50)]


def test_the_next_call_measures_what_is_missing(path: Path):
    with pytest.raises(OutOfTimeError):
        measured(path, FakeSide(None, None, OutOfTimeError()))
    results = Results(path, SETUPS)
    assert results.missing("ours", [SMALL, PREFILL], 2) == [(SMALL, 1), (PREFILL, 0), (PREFILL, 1)]
    assert results.missing("vllm", [SMALL], 1) == [(SMALL, 0)]


def test_a_torn_line_and_what_another_setup_measured_are_not_looked_at(path: Path):
    measured(path, FakeSide(), repeats=1)
    with path.open("a") as file:
        file.write('{"engine": "ours", "se')
    measured(path, FakeSide())
    assert Results(path, SETUPS).missing("ours", [SMALL], 2) == []
    assert Results(path, SETUPS | {"ours": "changed"}).missing("ours", [SMALL], 1) == [(SMALL, 0)]


@pytest.mark.parametrize("answers", [({"error": "no memory"},), (None, {"error": "no memory"})])
def test_a_cell_that_fails_is_done_and_ends_its_process(path: Path, answers: tuple[dict[str, Any] | None, ...]):
    side = FakeSide(*answers)
    results = measured(path, side)
    assert len(side.asked) == len(answers)
    assert results.missing("ours", [SMALL, PREFILL], 1) == [(PREFILL, 0)]
    assert results.median("ours", SMALL) is None


def test_engines_get_the_same_prompts_and_repeats_others():
    assert SMALL.prompts(0, 100) == SMALL.prompts(0, 100)
    assert SMALL.prompts(0, 100) != SMALL.prompts(1, 100)
    assert [len(prompt) for prompt in SMALL.prompts(0, 100)] == [8, 8]


def test_the_table_has_speeds_shares_of_the_floor_and_the_ratio(path: Path):
    results = measured(path, FakeSide(None, {"seconds": 0.2, "step_ms": 5.0, "decode_step_ms": 4.0}), repeats=1)
    measured(path, FakeSide(None, {"seconds": 0.4}), "vllm", repeats=1)
    results = Results(path, SETUPS)
    assert ratio_of(results, SMALL) == 2.0
    _, small, prefill = table(results, [SMALL, PREFILL], ["ours", "vllm"], {SMALL: 0.1})
    assert small.split() == ["2,8,4", "80", "40", "50%", "20", "25%", "2.000", "5.00,", "4.00"]
    assert prefill.split() == ["4,16,1", "nan", "213", "213", "1.000", "–,", "–"]


@pytest.mark.parametrize("quantization", [None, "fp8", "int4"])
def test_all_sides_load_one_checkpoint_whose_weights_are_no_zeros(tmp_path: Path, quantization: FormatName | None):
    raw = LLAMA_8B | {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 50,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
    }  # fmt: skip
    write_checkpoint(tmp_path / "model", raw, quantization, "cpu")
    weights = open_checkpoint(tmp_path / "model").weights
    name = "model.layers.0.mlp.down_proj.weight"
    matrix = weights.get(name) if quantization is None else weights.get_quantised(name).dequantised()
    plain = DummyWeights(config_from_hf(raw, "")).get(name, torch.bfloat16)
    assert (matrix != 0).float().mean() > 0.8
    assert (matrix.float() - plain.float()).norm() / plain.float().norm() < {None: 1e-6, "fp8": 0.05, "int4": 0.2}[
        quantization
    ]
    options = [options_of(name, parse(("--quantization", "fp8"))) for name in ("ours", "vllm")]
    assert options[0] == options[1]


def test_joules_are_those_of_the_measured_run(path: Path):
    readings = iter([10.0, 13.0, 20.0, 24.0])
    results = Results(path, SETUPS)
    measure("ours", FakeSide(), [(SMALL, 0), (SMALL, 1)], results, 100, lambda: next(readings))
    assert [record["joules"] for record in results.of("ours", SMALL)] == [3.0, 4.0]
    _, row = energy_table(results, [SMALL], ["ours"])
    assert row.split() == ["2,8,4", "437.5", "–"]  # 3.5 J for 8 tokens


def test_a_measurement_is_the_mean_of_as_many_short_runs_as_take_long_enough(path: Path):
    readings = iter([10.0, 19.0])
    side = FakeSide(None, {"seconds": 0.25, "step_ms": 2.0}, {"seconds": 0.75, "step_ms": 4.0}, {"error": "late"})
    results = Results(path, SETUPS)
    measure("ours", side, [(SMALL, 0)], results, 100, lambda: next(readings), least_s=1.0)
    (record,) = results.of("ours", SMALL)
    assert (record["seconds"], record["step_ms"], record["joules"]) == (0.5, 3.0, 4.5)
    assert len(side.asked) == 1 + 2


def test_a_measurement_of_which_a_run_fails_has_failed(path: Path):
    side = FakeSide(None, {"seconds": 0.25}, {"error": "no memory"})
    results = Results(path, SETUPS)
    measure("ours", side, [(SMALL, 0), (SMALL, 1)], results, 100, iter((1.0, 9.0)).__next__, least_s=1.0)
    (record,) = results.of("ours", SMALL)
    assert (record["error"], len(side.asked)) == ("no memory", 3)
    assert "joules" not in record


def test_the_meter_counts_the_gpus_that_the_engines_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offline, "open_gpus", lambda: open_gpus(FakeNvml(count=3)))
    read = {}
    for visible in ("0", "0,2", None):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        read[visible] = offline.energy_meter()()
    assert [read["0,2"], read[None]] == [2 * read["0"], 3 * read["0"]]
    monkeypatch.setattr(offline, "open_gpus", lambda: ([], "no GPU"))
    assert offline.energy_meter()() is None


def test_a_changed_option_or_changed_code_of_ours_is_another_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def setups(*arguments: str) -> list[str]:
        return [setup_of(name, parse(arguments)) for name in ("ours", "vllm")]

    monkeypatch.setattr(offline, "ROOT", tmp_path)
    (tmp_path / "reference_engine").mkdir()
    code = tmp_path / "reference_engine" / "a.py"
    code.write_text("1")
    before, other = setups(), setups("--vllm-options", '{"seed": 1}')
    assert before[0] == other[0]
    assert before[1] != other[1]
    code.write_text("2")
    assert setups()[0] != before[0]
    assert setups()[1] == before[1]


VLLM_TOKENS_PER_S = {
    (): {
        (1, 128, 256): 205, (8, 128, 256): 1552, (32, 1024, 256): 3463, (64, 1024, 256): 4716, (256, 1024, 128): 3907,
        (1000, 220, 200): 14_003, (16, 8000, 1): 37_923,
    },
    ("--quantization", "fp8"): {(1, 128, 256): 278, (8, 128, 256): 2122, (64, 1024, 128): 4619, (16, 8000, 1): 55_125},
    ("--quantization", "int4"): {(1, 128, 256): 261, (8, 128, 256): 1992, (64, 1024, 128): 3203},
    ("--tensor-parallel", "2"): {(1, 128, 256): 286, (64, 1024, 256): 7397, (16, 8000, 1): 65_259},
    ("--tensor-parallel", "4"): {
        (1, 128, 256): 364, (8, 128, 256): 2657, (64, 1024, 256): 10_550, (256, 1024, 128): 10_378,
        (16, 8000, 1): 107_241,
    },
}  # fmt: skip
"""By options; measured on H200, see docs/results/h200-offline and h200-four-gpus."""


@pytest.mark.parametrize("words", VLLM_TOKENS_PER_S)
def test_the_plan_of_a_cell_is_near_what_vllm_took(words: tuple[str, ...]):
    options = parse(("--plan", "h200", *words))
    for shape, measured_per_s in VLLM_TOKENS_PER_S[words].items():
        cell = Cell(*shape)
        # The plan is that of a server: with 256 short sequences it is 11 % slower than these runs without HTTP.
        assert cell.tokens / planned_s(cell, options) == pytest.approx(measured_per_s, rel=PLAN_ERROR)


def test_a_model_that_four_gpus_divide_is_planned_for_four_and_asked_of_both_engines(path: Path):
    shape = ("--model", "llama-3.1-70b", "--quantization", "fp8", "--plan", "h200")
    one, four = parse(shape), parse((*shape, "--tensor-parallel", "4"))
    cell = next(iter(DIVIDED_GOALS))
    assert 2 < planned_s(cell, one) / planned_s(cell, four) < 4
    assert {options_of(name, four)["tensor"] for name in ("ours", "vllm")} == {4}
    results = Results(path, SETUPS)
    results.add("vllm", cell, seconds=2 * planned_s(cell, four))
    _, row = plan_table(results, [cell], four)
    assert row.split()[2:] == ["–", "0.500"]


def test_options_that_do_not_go_together_are_refused(capsys: pytest.CaptureFixture[str]):
    for words, message in (
        (("--engine", "hf", "--tensor-parallel", "2"), "leave hf out of --engine"),
        (("--plan", "h200", "--pipeline-parallel", "2"), "leave --plan out"),
        (("--plan", "h2000"), "invalid choice"),
        (("--tensor-parallel", "0"), "at least 1"),
    ):
        with pytest.raises(SystemExit):
            parse(words)
        assert message in capsys.readouterr().err
