"""A pruned checkpoint computes what the whole one computes without the removed parts."""

import json

import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import (
    AutoModelForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from bakeoff.installation import how_to_install
from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.tools import transformers_model
from bakeoff.reference_engine.tools.evaluator import PerplexityMeter
from bakeoff.reference_engine.tools.importance import input_norms, measure
from bakeoff.reference_engine.tools.pruning import Pruning, prune, zero_weights
from bakeoff.reference_engine.tools.transformers_model import load_model, open_directory
from tests.reference_engine.conftest import VOCAB_SIZE

TEXT = "hello world, the worn hero wonders where the others were.\n" * 3
TOKENS = [5 + (7 * place) % 200 for place in range(40)]
SHAPE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


@pytest.fixture
def pruned(tmp_path, text):
    def run(source, **settings):
        lines = []
        prune(source, tmp_path / "pruned", Pruning(**settings), text=text, device="cpu", say=lines.append)
        assert lines[-1].startswith(f"wrote {tmp_path / 'pruned'}: ")
        return tmp_path / "pruned"

    return run


@pytest.fixture
def saved(tmp_path, save_checkpoint):
    def write(model):
        (tmp_path / "source").mkdir(exist_ok=True)
        return save_checkpoint(tmp_path / "source", model)

    return write


@torch.inference_mode()
def logits_of(model):
    return model(input_ids=torch.tensor([TOKENS])).logits[0]


def transformers_logits(directory):
    return logits_of(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32))


def engine_logits(directory):
    config = EngineConfig(
        model=str(directory), dtype="float32", threads=1, max_num_seqs=1, device="cpu", enable_prefix_caching=False
    )
    return torch.cat([rows.clone() for _, rows in PerplexityMeter(config, 16).logits([*TOKENS, 5])])


def assert_computes(directory, expected):
    torch.testing.assert_close(transformers_logits(directory), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(engine_logits(directory), expected, rtol=1e-3, atol=1e-3)


def record(directory):
    return json.loads((directory / "pruning.json").read_text())


def test_keeping_all_changes_no_bit(pruned, checkpoint_dir):
    directory = pruned(checkpoint_dir, layers=2, neurons=1.0, heads=1.0, weights=1.0)
    before, after = SafetensorsDirectory(checkpoint_dir), SafetensorsDirectory(directory)
    assert sorted(before.names()) == sorted(after.names())
    assert all(torch.equal(before.get(name), after.get(name)) for name in before.names())
    assert (directory / "tokenizer.json").read_bytes() == (checkpoint_dir / "tokenizer.json").read_bytes()
    assert record(directory)["parameters"]["source"] == record(directory)["parameters"]["kept"]
    assert record(directory)["zero_share_of_matrices"] == 0


@pytest.mark.parametrize("idle", [0, 1, 2])
def test_the_layer_that_does_least_goes_and_the_rest_is_the_model_without_it(pruned, saved, make_model, idle):
    model = make_model(num_hidden_layers=3)
    with torch.no_grad():
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            model.model.layers[idle].get_submodule(name).weight.mul_(0.01)
    directory = pruned(saved(model), layers=2)
    assert record(directory)["kept"]["layers"] == [layer for layer in range(3) if layer != idle]
    del model.model.layers[idle]
    assert_computes(directory, logits_of(model))


def test_heads_and_neurons_without_weights_go_first_and_change_nothing(pruned, saved, make_model):
    model = make_model()
    with torch.no_grad():
        for layer, group in zip(model.model.layers, (1, 0), strict=True):
            layer.self_attn.o_proj.weight.unflatten(1, (2, -1))[:, group] = 0
            layer.mlp.down_proj.weight[:, group::2] = 0
    expected = logits_of(model)
    directory = pruned(saved(model), neurons=0.5, heads=0.5)
    kept = record(directory)["kept"]
    assert kept["kv_groups"] == [[0], [1]]
    assert kept["neurons"] == [list(range(0, 96, 2)), list(range(1, 96, 2))]
    assert record(directory)["importance"]["kept_share_of_neurons"] == pytest.approx([1.0, 1.0])
    config = json.loads((directory / "config.json").read_text())
    assert [config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")] == [2, 1, 16]
    assert config["intermediate_size"] == 48
    assert_computes(directory, expected)


FAMILIES = {
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 9}),
    "qwen2": (
        Qwen2ForCausalLM, Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "tie_word_embeddings": True},
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_part_of_each_family_is_the_same_in_transformers_and_the_engine(pruned, saved, family):
    build, config, options = FAMILIES[family]
    torch.manual_seed(3)
    model = build(config(**SHAPE, **options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            model.model.layers[0].get_submodule(name).weight.mul_(0.01)
    directory = pruned(saved(model), layers=2, neurons=0.7, heads=0.5)
    expected = transformers_logits(directory)
    torch.testing.assert_close(engine_logits(directory), expected, rtol=1e-3, atol=1e-3)
    assert record(directory)["kept"]["layers"] == [1, 2]
    raw = json.loads((directory / "config.json").read_text())
    if family == "qwen2":
        assert raw["layer_types"] == ["full_attention", "sliding_attention"]
    assert raw["intermediate_size"] == 17


def test_biases_of_llama_are_cut_with_their_rows(pruned, saved, make_model):
    model = make_model(attention_bias=True, mlp_bias=True)
    directory = pruned(saved(model), neurons=0.5, heads=0.5)
    torch.testing.assert_close(engine_logits(directory), transformers_logits(directory), rtol=1e-3, atol=1e-3)


def test_importance_is_what_the_formulas_say(checkpoint_dir, hf_model):
    checkpoint = open_directory(checkpoint_dir)
    pieces = [TOKENS[:20], TOKENS[20:33]]
    importance = measure(load_model(checkpoint_dir, torch.device("cpu")), checkpoint.config, pieces)
    activations = []
    mlp = hf_model.model.layers[0].mlp
    hook = mlp.down_proj.register_forward_pre_hook(lambda _, inputs: activations.append(inputs[0][0]))
    with torch.inference_mode():
        states = [hf_model(torch.tensor([piece]), output_hidden_states=True).hidden_states for piece in pieces]
    hook.remove()
    before, after = (torch.cat([state[number][0] for state in states]) for number in (0, 1))
    assert float(importance.layers[0]) == pytest.approx(float((1 - cosine_similarity(before, after, dim=-1)).mean()))
    neurons = torch.cat(activations).abs().mean(0) * mlp.down_proj.weight.norm(dim=0)
    torch.testing.assert_close(importance.neurons[0].float(), neurons.detach(), rtol=1e-4, atol=1e-6)


def test_heads_are_as_important_as_what_they_add_is_long(checkpoint_dir, hf_model):
    checkpoint = open_directory(checkpoint_dir)
    importance = measure(load_model(checkpoint_dir, torch.device("cpu")), checkpoint.config, [TOKENS])
    out, rows = hf_model.model.layers[1].self_attn.o_proj, []
    hook = out.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0][0]))
    logits_of(hf_model)
    hook.remove()
    weight = out.weight.detach()
    added = [(rows[0][:, part] @ weight[:, part].T).norm(dim=-1).mean() for part in (slice(0, 32), slice(32, 64))]
    assert importance.groups[1].tolist() == pytest.approx([float(length) for length in added], rel=1e-4)


def test_activation_compares_a_row_and_magnitude_a_matrix():
    weight = torch.tensor([[4.0, -1.0, 3.0, 2.0], [0.5, -0.125, 0.25, 0.375]])
    name = "model.layers.0.mlp.up_proj.weight"
    by_magnitude, by_activation = {name: weight.clone()}, {name: weight.clone(), "model.norm.weight": torch.ones(4)}
    zero_weights(by_magnitude, 0.5, None)
    assert by_magnitude[name].tolist() == [[4.0, -1.0, 3.0, 2.0], [0.0] * 4]
    zero_weights(by_activation, 0.5, {name: torch.tensor([1.0, 10.0, 1.0, 0.1], dtype=torch.float64)})
    assert by_activation[name].tolist() == [[4.0, -1.0, 0.0, 0.0], [0.5, -0.125, 0.0, 0.0]]
    assert by_activation["model.norm.weight"].tolist() == [1.0] * 4


def test_input_norms_are_over_all_tokens(checkpoint_dir, hf_model):
    norms = input_norms(load_model(checkpoint_dir, torch.device("cpu")), [TOKENS[:10], TOKENS[10:16]])
    with torch.inference_mode():
        first = hf_model.model.layers[0].input_layernorm
        rows = first(hf_model.model.embed_tokens(torch.tensor(TOKENS[:16])))
    torch.testing.assert_close(norms["model.layers.0.self_attn.q_proj.weight"].float(), rows.norm(dim=0))


@pytest.mark.parametrize("by", ["activation", "magnitude"])
def test_single_weights_become_zero_in_matrices_of_layers_only(pruned, checkpoint_dir, by):
    directory = pruned(checkpoint_dir, layers=1, weights=0.25, by=by)
    source = SafetensorsDirectory(directory)
    for name in source.names():
        zeros = 1 - float(source.get(name).count_nonzero()) / source.get(name).numel()
        assert zeros == (0.75 if name.endswith("_proj.weight") else 0), name
    assert record(directory)["zero_share_of_matrices"] == 0.75
    torch.testing.assert_close(engine_logits(directory), transformers_logits(directory), rtol=1e-3, atol=1e-3)


MISTAKES = {
    "": "nothing to prune; give --layers, --neurons, --heads or --weights",
    "--layers 3": "--layers must be 1 to 2, what the model has, not 3",
    "--layers 0": "--layers must be 1 to 2",
    "--heads 0": "--heads is the share to keep, above 0 and at most 1, not 0.0",
    "--neurons 1.5": "--neurons is the share to keep",
    "--weights -1": "--weights is the share to keep",
    "--layers 1 --calibration-tokens 1": "--calibration-tokens must be at least 2",
    "--layers 1 --text SHORT": "a text of 0 tokens is too short to measure on",
    "--layers 1 --text NONE": "cannot be read as UTF-8 text",
    "--layers 1 --out SOURCE": "is the model itself; give another directory",
    "--layers 1 --out SHORT": "is a file; give a directory",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(capsys, tmp_path, checkpoint_dir, text, line):
    (tmp_path / "short").write_text("")
    places = {"SHORT": tmp_path / "short", "NONE": tmp_path / "none", "SOURCE": checkpoint_dir}
    words = [str(places.get(word, word)) for word in line.split()]
    assert main(["prune", str(checkpoint_dir), "--text", str(text), "--out", str(tmp_path / "out"), *words]) == 2
    errors = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error: ")]
    assert len(errors) == 1
    assert MISTAKES[line] in errors[0]
    assert not (tmp_path / "out").exists()


def test_models_that_cannot_be_pruned_are_named(capsys, monkeypatch, tmp_path, checkpoint_dir, text):
    rest = ["--layers", "1", "--text", str(text), "--out", str(tmp_path / "out")]
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert main(["prune", str(tmp_path / "m.gguf"), *rest]) == 2
    assert "is a file; convert it first" in capsys.readouterr().err
    (tmp_path / "config.json").write_text((checkpoint_dir / "config.json").read_text().replace('"llama"', '"mamba"'))
    assert main(["prune", str(tmp_path), *rest]) == 2
    assert "model_type 'mamba' is not supported" in capsys.readouterr().err
    monkeypatch.setattr(transformers_model.importlib.util, "find_spec", lambda _: None)
    assert main(["prune", str(checkpoint_dir), *rest]) == 2
    assert (
        f"error: Transformers is not installed here; run: {how_to_install('engine', 'hf')}\n" in capsys.readouterr().err
    )
