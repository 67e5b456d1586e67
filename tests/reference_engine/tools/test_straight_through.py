"""Training with rounded matrices: what is computed, what gets a gradient, and what it is worth once quantised."""

import json

import pytest
import torch

from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.quantised import QuantisedDirectory
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory, read_format
from bakeoff.reference_engine.quantization.formats.base import Scheme
from bakeoff.reference_engine.tools.distillation import Distillation, distil
from bakeoff.reference_engine.tools.quantisation_methods import Quantising
from bakeoff.reference_engine.tools.quantising import quantise
from bakeoff.reference_engine.tools.straight_through import plain_weights, round_matrices
from bakeoff.reference_engine.tools.transformers_model import load_model

TOKENS = torch.tensor([[5, 17, 40, 8, 99, 23]])
METHODS = ("int8", "int4", "int4-zp", "fp8", "nf4")
CPU = torch.device("cpu")
SETTINGS = {"steps": 60, "batch_tokens": 256, "text_tokens": 3000, "answer_tokens": 24, "learning_rate": 5e-4}


def scheme_of(method) -> Scheme:
    return Quantising(method=method, group_size=32 if method.startswith("int4") else None).plan([64, 96]).scheme


def quantised_twin(source, target, method):
    """A model of Transformers with the weights of the quantised checkpoint."""
    settings = Quantising(method=method, group_size=32 if method.startswith("int4") else None)
    quantise(source, target, settings, text=None, device="cpu", say=lambda _: None)
    weights, twin = QuantisedDirectory(SafetensorsDirectory(target), read_format(target)), load_model(source, CPU)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(weights.get(name))
    return twin


@pytest.mark.parametrize("method", METHODS)
def test_it_computes_as_the_quantised_checkpoint_will(checkpoint_dir, tmp_path, method):
    model = load_model(checkpoint_dir, CPU)
    plain = model(TOKENS).logits
    round_matrices(model, scheme_of(method))
    rounded, expected = model(TOKENS).logits, quantised_twin(checkpoint_dir, tmp_path / "q", method)(TOKENS).logits
    assert torch.allclose(rounded, expected, atol=1e-4)
    assert not torch.allclose(rounded, plain, atol=1e-3)


def test_gradients_are_those_at_the_rounded_weights(checkpoint_dir, tmp_path):
    model, twin = load_model(checkpoint_dir, CPU), quantised_twin(checkpoint_dir, tmp_path / "q", "int4")
    round_matrices(model, scheme_of("int4"))
    for module in (model, twin):
        module(TOKENS).logits.square().mean().backward()
    gradient = model.model.layers[1].mlp.up_proj.parametrizations.weight.original.grad
    assert torch.allclose(gradient, twin.model.layers[1].mlp.up_proj.weight.grad, rtol=1e-3, atol=1e-7)
    assert float(gradient.norm()) > 0


def test_the_weights_behind_keep_their_names_and_values(checkpoint_dir):
    model = load_model(checkpoint_dir, CPU)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    round_matrices(model, scheme_of("int4"))
    after = plain_weights(model)
    assert set(after) == set(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_scheme_that_suits_no_width_is_refused(make_model):
    model = make_model(hidden_size=36, intermediate_size=36, num_attention_heads=1, num_key_value_heads=1)
    with pytest.raises(ConfigError, match="--rounded-to: blocks of the method divide no width"):
        round_matrices(model, scheme_of("nf4"))


def test_a_model_that_learned_to_be_rounded_loses_less_by_it(checkpoint_dir, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"hello world, said hero number {number}\n" for number in range(60)))
    settings = Distillation(**SETTINGS, rounded_to="int4", group_size=32)
    target = tmp_path / "tuned"
    result = distil(checkpoint_dir, checkpoint_dir, target, settings, text=prompts, device="cpu", say=lambda _: None)
    rows = [json.loads(line) for line in (target / "distillation.jsonl").read_text().splitlines()]
    assert result.kl < 0.7 * rows[0]["held_out_kl"]
    teacher = load_model(checkpoint_dir, CPU)(TOKENS).logits.log_softmax(-1)
    plainly = quantised_twin(checkpoint_dir, tmp_path / "a", "int4")(TOKENS).logits.log_softmax(-1)
    tuned = quantised_twin(target, tmp_path / "b", "int4")(TOKENS).logits.log_softmax(-1)
    divergence = [(teacher.exp() * (teacher - other)).sum(-1).mean() for other in (plainly, tuned)]
    assert divergence[1] < divergence[0]
