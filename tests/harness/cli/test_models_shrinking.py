"""`bakeoff models prune`, `distil`, `trim`, `eagle`, `quantize` become the engine, by default with a built-in text."""

import dataclasses
import os
import sys
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path

import pytest

from bakeoff.engines import Model
from bakeoff.engines.models import KNOWN_MODELS
from bakeoff.harness.cli import known_models, make_app
from bakeoff.harness.cli.commands.models_tools import built_in_prompts
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.quality import scorer
from bakeoff.installation import how_to_install
from bakeoff.reference_engine.__main__ import build_parser, main
from bakeoff.reference_engine.tools.distillation import Distillation
from bakeoff.reference_engine.tools.head_training import HeadTraining
from bakeoff.reference_engine.tools.pruning import Pruning
from bakeoff.reference_engine.tools.quantisation_methods import Quantising


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


@pytest.mark.parametrize("command", ["prune", "distil", "trim", "eagle", "quantize"])
def test_the_engine_gets_the_options_and_a_text(become, folder, tmp_path, command):
    models = [folder, folder] if command == "distil" else [folder]
    argv, text = become(command, *models, "--out", tmp_path / "out", "--seed", -1)
    words = [*models, "--out", tmp_path / "out", "--seed", -1]
    assert argv == ["-m", "bakeoff.reference_engine", command, *map(str, words)]
    assert text == built_in_prompts().encode()


def test_a_known_models_name_is_its_folder_wherever_it_stands(become, folder, monkeypatch):
    monkeypatch.setitem(KNOWN_MODELS, "tiny-model", KNOWN_MODELS["smollm2-135m-instruct"])
    monkeypatch.setattr(known_models, "named_model", lambda _: Model("tiny-model", folder))
    for words in (
        ["tiny-model", "--out", "tiny-model", "--rows", "9"],
        ["--out", "tiny-model", "--rows", "9", "tiny-model"],
    ):
        argv, _ = become("quantize", *words)
        assert argv[3:] == [word if before == "--out" or word != "tiny-model" else str(folder)
                            for before, word in pairwise(["", *words])]  # fmt: skip


@pytest.mark.parametrize("words", [["--text", "t"], ["--text=t"]])
def test_a_text_of_ones_own_replaces_the_built_in_one(become, folder, words):
    argv, text = become("trim", folder, *words)
    assert argv[3:] == [str(folder), *words]
    assert text == b""


@pytest.mark.parametrize(
    ("command", "settings"),
    [("prune", Pruning), ("distil", Distillation), ("eagle", HeadTraining), ("quantize", Quantising)],
)
def test_options_are_the_fields_of_the_settings(command, settings):
    models = ["m", "m"] if command == "distil" else ["m"]
    words = [command, *models, "--out", "o", *(["--method", "gptq"] if command == "quantize" else [])]
    parsed = vars(build_parser(command).parse_args(words))
    for field in dataclasses.fields(settings):
        assert parsed.pop(field.name) == ("gptq" if field.name == "method" else field.default)
    assert {"command", "target", "text", "device"} < set(parsed)


def test_options_have_the_types_of_their_fields():
    words = "quantize m --out o --method gguf-q8_0 --group-size 64 --act-order --smoothing 0.5"
    parsed = build_parser("quantize").parse_args(words.split())
    assert (parsed.method, parsed.group_size, parsed.act_order, parsed.smoothing) == ("gguf-q8_0", 64, True, 0.5)
    words = "distil m m --out o --rounded-to int4 --loss reverse-kl --learning-rate 0.01 --dtype bfloat16"
    parsed = build_parser("distil").parse_args(words.split())
    assert (parsed.rounded_to, parsed.loss) == ("int4", "reverse-kl")
    assert (parsed.learning_rate, parsed.dtype) == (0.01, "bfloat16")


@pytest.mark.parametrize(
    "words", ["prune m", "prune m --out o --by size", "quantize m --out o --method int3", "eagle m --out o --places x"]
)
def test_a_wrong_option_is_one_line(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bakeoff models {words.split()[0]}: ")
    assert said.count("\n") == 1


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
        f"bakeoff: the reference is not installed here; run: {how_to_install('engine')}\n"
    )
