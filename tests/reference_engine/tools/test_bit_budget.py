"""Layers that matter most keep more bits, within a number of bytes."""

import itertools
import random

import pytest
import torch

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.files import read_json
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.quantised import QuantisedDirectory
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory, read_format
from bakeoff.reference_engine.quantization.formats.base import IntegerScheme
from bakeoff.reference_engine.tools import quantising
from bakeoff.reference_engine.tools.bit_budget import PLAIN, Cost, cheapest, layer_costs
from bakeoff.reference_engine.tools.importance import MATRICES
from bakeoff.reference_engine.tools.quantisation_methods import Quantising
from bakeoff.reference_engine.tools.quantising import quantise
from bakeoff.reference_engine.tools.transformers_model import load_model

CPU = torch.device("cpu")
PIECES = [[5, 17, 40, 8, 99, 23], [7, 7, 200, 31]]
SCHEMES = {"int8": IntegerScheme(8, None), "int4": IntegerScheme(4, 32)}
TEXT = "hello world, said the hero of this text\n" * 40


def weights_mb(folder):
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6


def test_divergences_are_those_of_the_model_with_one_layer_quantised(checkpoint_dir):
    source = SafetensorsDirectory(checkpoint_dir)
    costs = layer_costs(source, PIECES, SCHEMES, [MATRICES, MATRICES], CPU)
    plain = load_model(checkpoint_dir, CPU)
    for index, name in itertools.product(range(2), SCHEMES):
        model = load_model(checkpoint_dir, CPU)
        numbers = 0
        with torch.no_grad():
            for matrix in MATRICES:
                weight = model.model.layers[index].get_submodule(matrix).weight
                rounded = SCHEMES[name].nearest(weight)
                weight.copy_(rounded.dequantised())
                numbers += rounded.nbytes
            p, q = (
                torch.cat([network(torch.tensor([piece])).logits[0] for piece in PIECES]).log_softmax(-1)
                for network in (plain, model)
            )
        expected = float((p.exp() * (p - q)).sum(-1).mean())
        assert costs[index][name].divergence == pytest.approx(expected, rel=1e-3)
        assert costs[index][name].nbytes == numbers + 2 * 64 * 4  # and two norms
        assert costs[index][PLAIN].divergence == 0
    assert costs[0]["int8"].divergence < costs[0]["int4"].divergence


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_keeps_the_budget_and_is_hardly_worse_than_the_best(seed):
    """Beside all 3⁶ choices for six layers of one size; more bits always diverge less there."""
    rng = random.Random(seed)
    costs = []
    for _ in range(6):
        least = rng.lognormvariate(0, 1)
        costs.append({"int4": Cost(45, least), "int8": Cost(80, least * rng.uniform(0.01, 0.1)), PLAIN: Cost(160, 0.0)})
    for budget in (270, 400, 700, 960):
        names = cheapest(costs, budget)
        assert sum(layer[name].nbytes for layer, name in zip(costs, names, strict=True)) <= budget
        lost = sum(layer[name].divergence for layer, name in zip(costs, names, strict=True))
        fitting = (
            several
            for several in itertools.product(*(layer.values() for layer in costs))
            if sum(cost.nbytes for cost in several) <= budget
        )
        best = min(sum(cost.divergence for cost in several) for several in fitting)
        assert lost <= 1.2 * best + 1e-9
    assert cheapest(costs, 270) == ["int4"] * 6
    assert cheapest(costs, 960) == [PLAIN] * 6


def test_too_small_a_budget_is_refused():
    with pytest.raises(ConfigError, match=r"the layers take 0\.2 MB at least, 0\.1 MB too much"):
        cheapest([{"int4": Cost(100_000, 1.0)}, {"int4": Cost(100_000, 1.0)}], 100_000)


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text"
    file.write_text(TEXT)
    return file


def test_a_checkpoint_within_the_budget_is_written_and_read(make_model, save_checkpoint, tmp_path, text):
    source = save_checkpoint(tmp_path / "source", make_model(num_hidden_layers=4))
    plainly = tmp_path / "int4"
    quantise(source, plainly, Quantising(method="int4", group_size=32), text=None, device="cpu", say=lambda _: None)
    budget = weights_mb(plainly) + 0.03
    target, lines = tmp_path / "mixed", []
    settings = Quantising(method="int4", group_size=32, budget_mb=budget, calibration_tokens=64)
    quantise(source, target, settings, text=text, device="cpu", say=lines.append)
    assert weights_mb(plainly) < weights_mb(target) <= budget + 0.012  # and the files' headers
    names = read_json(target / "quantization.json")["layers"]
    assert set(names) > {"int4"}
    assert len(names) == 4
    assert any("layers int4" in line for line in lines)
    stored, plain = QuantisedDirectory(SafetensorsDirectory(target), read_format(target)), SafetensorsDirectory(source)
    for index, name in enumerate(names):
        weight = f"model.layers.{index}.mlp.up_proj.weight"
        expected = plain.get(weight)
        if name != PLAIN:
            expected = SCHEMES[name].nearest(expected).dequantised()
        assert torch.equal(stored.get(weight), expected), name


def test_an_interrupted_command_keeps_the_choice(checkpoint_dir, tmp_path, text, monkeypatch):
    settings = Quantising(method="int4", group_size=32, budget_mb=0.3, calibration_tokens=64)
    measured = []
    monkeypatch.setattr(
        quantising, "layer_costs", lambda *given: measured.append(1) or layer_costs(*given)
    )  # counts, and measures
    written = quantising._save
    monkeypatch.setattr(quantising, "_save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        quantise(checkpoint_dir, tmp_path / "q", settings, text=text, device="cpu", say=lambda _: None)
    monkeypatch.setattr(quantising, "_save", written)
    quantise(checkpoint_dir, tmp_path / "q", settings, text=text, device="cpu", say=lambda _: None)
    assert len(measured) == 1
    assert (tmp_path / "q" / "config.json").exists()


def test_a_budget_is_for_int4(checkpoint_dir, tmp_path, capsys):
    words = ["quantize", checkpoint_dir, "--method", "int8", "--budget-mb", "1", "--out", tmp_path / "q"]
    assert main([str(word) for word in words]) == 2
    assert "--budget-mb is for --method int4, int4-zp; leave it out" in capsys.readouterr().err
