"""`quantize`: what the new checkpoint's matrices are, what goes on after an interruption, and what is refused."""

import json
from typing import get_args

import pytest
import torch

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.quantization_names import WrittenName
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.quantization import fp8, nf4
from bakeoff.reference_engine.quantization.llm_int8 import LlmInt8Matrix
from bakeoff.reference_engine.quantization.rounding import absmax, zero_point
from bakeoff.reference_engine.tools import quantising as module
from bakeoff.reference_engine.tools.evaluator import PerplexityMeter
from bakeoff.reference_engine.tools.layer_stream import LayerStream
from bakeoff.reference_engine.tools.quantisation_methods import METHODS, Quantising
from bakeoff.reference_engine.tools.quantising import RECORD, quantise

TEXT = "hello world, the worn hero wonders where the others were.\n" * 8
IN_8_BITS = ("int8", "fp8", "llm-int8", "w8a8")
MATRIX = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


@pytest.fixture
def quantised(tmp_path, checkpoint_dir, text):
    def run(name="out", **settings):
        lines = []
        quantise(
            checkpoint_dir, tmp_path / name, Quantising(calibration_tokens=96, **settings),
            text=text, device="cpu", say=lines.append,
        )  # fmt: skip
        assert lines[-1].startswith(f"wrote {tmp_path / name}: ")
        return tmp_path / name

    return run


def nats_of(model):
    """Per token of the text."""
    meter = PerplexityMeter(EngineConfig(model=str(model), device="cpu", dtype="float32", quantization="stored"))
    return meter.measure(meter.tokenizer.encode(TEXT)).nats_per_token


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("method", "round_to_nearest"),
    [
        ("int8", lambda weight: absmax(weight, 8, 64)),
        ("int8-zp", lambda weight: zero_point(weight, 8, 64)),
        ("int4", lambda weight: absmax(weight, 4, 32)),
        ("int4-zp", lambda weight: zero_point(weight, 4, 32)),
        ("fp8", fp8.quantised),
        ("llm-int8", LlmInt8Matrix.of),
        ("nf4", nf4.quantised),
        ("nf4-double", lambda weight: nf4.quantised(weight, nested=True)),
    ],
)
def test_methods_without_calibration_round_to_nearest(quantised, checkpoint_dir, method, round_to_nearest):
    target = quantised(method=method)
    made = open_checkpoint(target).weights.get_quantised(MATRIX)
    expected = round_to_nearest(open_checkpoint(checkpoint_dir).weights.get(MATRIX))
    assert type(made) is type(expected)
    torch.testing.assert_close(made.dequantised(), expected.dequantised(), rtol=1e-6, atol=1e-6)


SETTINGS = [
    {"method": "int8"}, {"method": "int4", "group_size": 32}, {"method": "gptq"}, {"method": "awq"},
    {"method": "gptq", "act_order": True, "asymmetric": True}, {"method": "fp8"}, {"method": "llm-int8"},
    {"method": "nf4-double"}, {"method": "w8a8", "smoothing": 0.25},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_a_quantised_checkpoint_predicts_almost_what_the_plain_one_predicts(quantised, checkpoint_dir, text, settings):
    target = quantised(**settings)
    plain, made = nats_of(checkpoint_dir), nats_of(target)
    assert made == pytest.approx(plain, abs=0.02 if settings["method"] in IN_8_BITS else 0.3)
    record = json.loads((target / RECORD).read_text())
    assert record["method"] == settings["method"]
    sizes = [sum(file.stat().st_size for file in path.glob("*.safetensors")) for path in (checkpoint_dir, target)]
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize("method", ["int4", "nf4-double", "gptq", "awq", "w8a8"])
def test_after_an_interruption_the_same_command_makes_the_same_files(quantised, tmp_path, monkeypatch, method):
    whole = quantised("whole", method=method)
    written = module._save

    def interrupted(tensors, file):
        if "00002-of" in file.name:
            raise KeyboardInterrupt
        written(tensors, file)

    monkeypatch.setattr(module, "_save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantised(method=method)
    assert not (tmp_path / "out/config.json").exists()
    first = (tmp_path / "out/model-00001-of-00003.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(module, "_save", written)
    with pytest.raises(ConfigError, match=f"unfinished work with --method {method}, not int8; give the same"):
        quantised(method="int8")
    target = quantised(method=method)
    assert files_of(target) == files_of(whole)
    assert (target / "model-00001-of-00003.safetensors").stat().st_mtime_ns == first


@pytest.mark.parametrize(("method", "runs"), [("awq", 2), ("gptq", 3)])
def test_a_layer_is_computed_again_only_with_its_new_weights(quantised, monkeypatch, method, runs):
    """Two layers are observed; what the second one gets has to be computed only if the first one's errors count."""
    computed = []
    run = LayerStream.run
    monkeypatch.setattr(
        LayerStream, "run", lambda self, index, *rest: computed.append(index) or run(self, index, *rest)
    )
    quantised(method=method)
    assert len(computed) == runs


def test_gptq_beats_rounding_to_nearest_on_its_own_text(quantised, checkpoint_dir):
    """Of the last layer's output, which has the errors of all layers."""
    targets = quantised("rounded", method="int4"), quantised("gptq", method="gptq")
    plain, rounded, gptq = map(nats_of, (checkpoint_dir, *targets))
    assert abs(gptq - plain) < abs(rounded - plain)


MISTAKES = {
    "--method int4 --group-size 48": "--group-size must be a multiple of 32, not 48",
    "--method int4 --group-size 64": "--group-size 64 does not divide the widths of the matrices, which are [64, 96]",
    "--method awq --act-order": "--act-order is for --method gptq; leave it out",
    "--method fp8 --group-size 32": "--group-size is for --method int8, int8-zp, int4, int4-zp, gptq, awq; leave",
    "--method w8a8 --smoothing 1.5": "--smoothing must be 0 to 1, not 1.5",
    "--method int8 --smoothing 0.5": "--smoothing is for --method w8a8; leave it out",
    "--method gptq --calibration-tokens 1": "--calibration-tokens must be at least 2, not 1",
    "--method gptq --text NONE": "cannot be read as UTF-8 text",
    "--method int8 --out MODEL": "is already a checkpoint; give a new directory",
    "--method int8 --out TEXT": "is a file; give a directory",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(capsys, tmp_path, checkpoint_dir, text, line):
    places = {"NONE": tmp_path / "none", "MODEL": checkpoint_dir, "TEXT": text}
    words = ["quantize", checkpoint_dir, "--text", text, "--out", tmp_path / "out", "--device", "cpu"]
    assert main([str(places.get(word, word)) for word in (*words, *line.split())]) == 2
    errors = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error: ")]
    assert len(errors) == 1
    assert MISTAKES[line] in errors[0]
    assert not (tmp_path / "out").exists()


def test_a_quantised_checkpoint_is_not_quantised_again(capsys, quantised, tmp_path):
    target = quantised(method="int8")
    assert main(["quantize", str(target), "--method", "int4", "--out", str(tmp_path / "twice")]) == 2
    assert "is quantised already; give the plain checkpoint that it was made from" in capsys.readouterr().err


def test_every_method_has_a_name_and_a_plan():
    assert tuple(METHODS) == get_args(WrittenName)
    for name, method in METHODS.items():
        plan = Quantising(method=name).plan([64, 128])
        assert (plan.layer is not None) == method.needs_text == Quantising(method=name).needs_text
        module = "model.layers.0.mlp.up_proj"
        encoding = plan.encoding(["model.layers.0.mlp.gate"])
        assert encoding.scheme("model.layers.0.mlp.gate") is encoding.scheme("lm_head") is None
        assert encoding.scheme(module) == plan.scheme
        encoding.encode(module, plan.scheme.nearest(torch.randn(8, 64)))


def test_a_matrix_that_blocks_do_not_divide_stays_plain(quantised, checkpoint_dir):
    """As where `--quantization nf4` quantises at load."""
    name = "model.layers.0.mlp.down_proj"  # of 96 inputs
    target = quantised(method="nf4")
    source, made = open_checkpoint(checkpoint_dir).weights, open_checkpoint(target).weights
    assert made.get_quantised(f"{name}.weight") is None
    assert torch.equal(made.get(f"{name}.weight"), source.get(f"{name}.weight"))
    config = json.loads((target / "config.json").read_text())["quantization_config"]
    assert config["llm_int8_skip_modules"] == ["lm_head", name, name.replace(".0.", ".1.")]
