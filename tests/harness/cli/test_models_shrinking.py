"""`bakeoff models prune`, `distil`, `trim`, `eagle`, `quantize` become the engine, by default with a built-in text."""

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.cli.shrinking import RoundingMethod, built_in_prompts, quantize
from bakeoff.harness.quality import scorer
from bakeoff.reference_engine.__main__ import build_parser
from bakeoff.reference_engine.core.quantization_names import GgufName, RoundingName, WrittenName


class Became(BaseException):
    """The process was replaced."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a checkpoint."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text("{}")
    return tmp_path / "tiny"


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., tuple[list[str], bytes]]]:
    """`become(*words)`: the command line that takes over, and its standard input."""
    stdin = os.dup(0)
    lines: list[list[str]] = []

    def replace(program: str, argv: list[str]) -> None:
        assert program == sys.executable
        lines.append(argv[1:])
        raise Became

    def run(*words: object) -> tuple[list[str], bytes]:
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        with pytest.raises(Became):
            guarded(make_app(), ["models", *map(str, words)])
        return lines[-1], os.read(0, 1 << 20)

    monkeypatch.setattr(os, "execv", replace)
    yield run
    os.dup2(stdin, 0)
    os.close(stdin)


@pytest.mark.parametrize("command", ["prune", "distil", "trim", "eagle"])
def test_defaults_are_those_of_the_reference_engine(become, folder, tmp_path, command):
    words = [folder, folder] if command == "distil" else [folder]
    words += [] if command == "trim" else ["--out", tmp_path / "out"]
    argv, text = become(command, *words)
    assert argv[:3] == ["-m", "bakeoff.reference_engine", command]
    parsed = vars(build_parser().parse_args(argv[2:]))
    plain = vars(build_parser().parse_args([command, *map(str, words)]))
    assert parsed == plain
    assert text == built_in_prompts().encode()


def test_options_of_prune_reach_the_engine(become, folder, tmp_path):
    argv, text = become(
        "prune", folder, "--out", tmp_path / "out", "--layers", 8, "--neurons", 0.5, "--heads", 0.25, "--weights", 0.75,
        "--by", "magnitude", "--text", tmp_path / "t", "--calibration-tokens", 99, "--device", "cpu",
    )  # fmt: skip
    assert vars(build_parser().parse_args(argv[2:])) == {
        "command": "prune", "source": folder, "target": tmp_path / "out", "layers": 8, "neurons": 0.5, "heads": 0.25,
        "weights": 0.75, "by": "magnitude", "text": tmp_path / "t", "calibration_tokens": 99, "device": "cpu",
    }  # fmt: skip
    assert text == b""


def test_options_of_quantize_reach_the_engine(become, folder, tmp_path):
    argv, text = become(
        "quantize", folder, "--out", tmp_path / "out", "--method", "gptq", "--group-size", 64, "--act-order",
        "--text", tmp_path / "t", "--calibration-tokens", 99, "--device", "cpu",
    )  # fmt: skip
    assert vars(build_parser().parse_args(argv[2:])) == {
        "command": "quantize", "source": folder, "target": tmp_path / "out", "method": "gptq", "group_size": 64,
        "act_order": True, "asymmetric": False, "smoothing": None, "budget_mb": None,
        "text": tmp_path / "t", "calibration_tokens": 99,
        "device": "cpu",
    }  # fmt: skip
    assert text == b""


def test_both_commands_take_the_same_methods():
    assert get_args(RoundingMethod) == get_args(RoundingName)
    assert get_args(get_type_hints(quantize)["method"]) == (*get_args(WrittenName), *get_args(GgufName))


def test_options_of_distil_reach_the_engine(become, folder, tmp_path):
    options = {
        "--loss": "reverse-kl", "--steps": 7, "--batch-tokens": 64, "--learning-rate": 0.01, "--text": tmp_path / "t",
        "--text-tokens": 65, "--answer-tokens": 8, "--temperature": 0.5, "--seed": 3, "--save-steps": 2,
        "--trim-vocabulary": 99, "--rounded-to": "int4", "--group-size": 64, "--dtype": "bfloat16", "--device": "cpu",
    }  # fmt: skip
    words = [word for pair in options.items() for word in pair]
    argv, _ = become("distil", folder, folder, "--out", tmp_path / "out", *words)
    parsed = vars(build_parser().parse_args(argv[2:]))
    assert {f"--{name.replace('_', '-')}": value for name, value in parsed.items()} == {
        "--command": "distil", "--teacher": folder, "--student": folder, "--target": tmp_path / "out", **options,
    }  # fmt: skip


def test_options_of_trim_reach_the_engine(become, folder, tmp_path):
    argv, text = become("trim", folder, "--rows", 99, "--text", tmp_path / "t")
    assert vars(build_parser().parse_args(argv[2:])) == {
        "command": "trim", "folder": folder, "rows": 99, "text": tmp_path / "t",
    }  # fmt: skip
    assert text == b""


def test_options_of_eagle_reach_the_engine(become, folder, tmp_path):
    options = {
        "--places": 5, "--draft-vocab": 99, "--steps": 7, "--batch-tokens": 64, "--learning-rate": 0.01,
        "--text": tmp_path / "t", "--text-tokens": 65, "--answer-tokens": 8, "--temperature": 0.5, "--seed": 3,
        "--save-steps": 2, "--dtype": "bfloat16", "--device": "cpu",
    }  # fmt: skip
    argv, _ = become("eagle", folder, "--out", tmp_path / "out", *(word for pair in options.items() for word in pair))
    parsed = vars(build_parser().parse_args(argv[2:]))
    assert {f"--{name.replace('_', '-')}": value for name, value in parsed.items()} == {
        "--command": "eagle", "--model": folder, "--target": tmp_path / "out", **options,
    }  # fmt: skip


def test_built_in_prompts_are_short_different_and_always_the_same():
    lines = built_in_prompts().splitlines()
    assert len(lines) == len(set(lines)) == 2_000
    assert max(len(line.split()) for line in lines) < 100
    assert min(len(line.split()) for line in lines) > 10
    assert built_in_prompts().splitlines() == lines


def test_a_missing_model_or_package_is_one_line(folder, tmp_path, monkeypatch, capsys):
    assert guarded(make_app(), ["models", "prune", str(tmp_path / "none"), "--out", "o"]) == 2
    assert "does not exist; give a checkpoint folder" in capsys.readouterr().err
    monkeypatch.setattr(scorer, "_PACKAGES", ("torch", "no_such_package"))
    assert guarded(make_app(), ["models", "distil", str(folder), str(folder), "--out", "o"]) == 2
    assert capsys.readouterr().err == (
        "bakeoff: the reference is not installed here; run: pip install 'bakeoff[engine]'\n"
    )
