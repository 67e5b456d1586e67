"""Whole checkpoints in public formats: how they are read, and the models that they make."""

import json
import types

import pytest
import torch

from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.kernels import integers
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.models.linear import JoinedLinear
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.quantization.formats.registry import format_of
from bakeoff.reference_engine.tools.transformers_model import open_directory
from tests.reference_engine import quantised_files as files
from tests.reference_engine.quantised_files import AWQ, CASES, GPTQ, SETTINGS, Drawn, compressed, drawn_for, tokens_of

CPU = torch.device("cpu")
LAYER = "model.layers.1."
MIXTRAL = files.TINY | {"model_type": "mixtral", "num_local_experts": 2, "sliding_window": None}


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    """The kernels for the CPU round activations."""
    monkeypatch.setattr(integers, "has_kernel", lambda *_: False)


@pytest.fixture
def pair(tmp_path, checkpoint_dir):
    """A model in a format, and its plain twin."""

    def write(case, **settings):
        config, drawing, tensors_of = CASES[case]
        by_rows = drawing.get("group") == 64

        def draw(rng, rows, columns):
            return Drawn(rng, rows, columns, **drawing | ({"group": columns} if by_rows else {}))

        folders = files.write_pair(tmp_path, settings.pop("config", config), draw, tensors_of, **settings)
        return files.with_tokenizer(folders, checkpoint_dir)

    return write


def same_weights(quantised, twin):
    weights, plain = open_checkpoint(quantised).weights, open_checkpoint(twin).weights
    assert set(plain.names()) <= set(weights.names())
    return all(torch.equal(weights.get(name), plain.get(name)) for name in plain.names())


@pytest.mark.parametrize("case", ["gptq in act-order", "awq", "packed with zero points", "bytes"])
def test_a_model_generates_the_tokens_of_its_dequantised_twin(pair, case):
    quantised, twin = pair(case)
    assert same_weights(quantised, twin)
    assert tokens_of(quantised, quantization="stored") == tokens_of(twin)


@pytest.mark.parametrize(
    ("method", "said"),
    [("fp8", "--quantization fp8: no kernel multiplies these codes on cpu in float32"), ("none", None)],
)
def test_weights_without_a_kernel_are_told_once(checkpoint_dir, caplog, method, said):
    weights = Weights(open_checkpoint(checkpoint_dir).weights, torch.float32, CPU, quantization=method)
    for layer in (0, 1):
        weights.rows(f"model.layers.{layer}.mlp.", "down_proj")
    assert [record.getMessage()[: len(said or "")] for record in caplog.records] == ([said] if said else [])


def test_stored_weights_that_become_plain_are_told_once(pair, caplog):
    quantised, _ = pair("bytes")
    weights = Weights(open_checkpoint(quantised).weights, torch.float32, CPU, quantization="auto")
    for part in ("q_proj", "k_proj"):
        weights.linear(f"{LAYER}self_attn.", (part,))
    (record,) = caplog.records
    assert "no kernel multiplies the checkpoint's quantised weights on cpu in float32" in record.getMessage()


@pytest.mark.parametrize("case", ["gptq in act-order", "awq", "bytes"])
@pytest.mark.parametrize("size", [1, 2])
def test_linear_layers_are_fused_and_cut_over_ranks(pair, case, size):
    """Inputs cannot be cut where their groups are scattered, or are one: such a matrix becomes plain."""
    quantised, twin = (open_checkpoint(folder).weights for folder in pair(case))
    x = torch.randn(3, 128)
    for rank in range(size):
        ranks = types.SimpleNamespace(rank=rank, size=size)
        stored, plain = (
            Weights(source, torch.float32, CPU, ranks=ranks, quantization="stored") for source in (quantised, twin)
        )
        fused, expected = (
            weights.columns(f"{LAYER}self_attn.", ("q_proj", "k_proj", "v_proj")) for weights in (stored, plain)
        )
        assert isinstance(fused, JoinedLinear) == (case == "gptq in act-order")
        torch.testing.assert_close(fused(x[:, :64]), expected(x[:, :64]))
        assert stored.plain_bytes == 0
        share = x.chunk(size, dim=1)[rank]
        down, expected = (weights.rows(f"{LAYER}mlp.", "down_proj") for weights in (stored, plain))
        torch.testing.assert_close(down(share), expected(share))
        assert (stored.plain_bytes == 0) == (size == 1 or case == "awq")


def test_ignored_modules_are_read_as_they_are(pair):
    plain = [f"model.layers.{layer}.mlp.down_proj" for layer in range(2)]
    config = compressed("pack-quantized", ignore=["lm_head", "re:.*down_proj"])
    quantised, twin = pair("packed", config=config, plain=plain)
    assert same_weights(quantised, twin)
    weights = open_checkpoint(quantised).weights
    for name in (plain[0], "lm_head", "model.norm", "model.embed_tokens"):
        assert weights.get_quantised(f"{name}.weight") is None
    assert weights.get_quantised(f"{LAYER}mlp.up_proj.weight").shape == (128, 64)


def test_a_quantised_checkpoint_is_not_quantised_again_and_not_pruned(pair):
    quantised, _ = pair("awq")
    with pytest.raises(ConfigError, match="this checkpoint is quantised already"):
        LLM(quantised, quantization="int8", **SETTINGS)
    with pytest.raises(CheckpointError, match="is quantised; give the plain checkpoint that it was made of"):
        open_directory(quantised)


def test_damage_names_folder_and_module(pair):
    quantised, _ = pair("awq", config=GPTQ)
    with pytest.raises(CheckpointError, match=r"quantised: model\.layers\.0\.self_attn\.q_proj: "):
        LLM(quantised, **SETTINGS)


@pytest.fixture
def dummies(tmp_path):
    """Only a config.json."""

    def write(config, raw=files.TINY):
        (tmp_path / "config.json").write_text(json.dumps(raw | {"quantization_config": config}))
        return tmp_path

    return write


@pytest.mark.parametrize("case", CASES)
def test_dummy_weights_have_the_layout_of_the_config(dummies, case):
    source = open_checkpoint(dummies(CASES[case][0]), "dummy").weights
    name = f"{LAYER}self_attn.q_proj.weight"
    matrix, again = source.get_quantised(name), source.get_quantised(name)
    read = format_of({"quantization_config": CASES[case][0]}, "x").decode("x", CASES[case][2](drawn_for(case, 64)))
    assert matrix.layout[:-1] == read.layout[:-1]
    assert (matrix.order is None) == (read.order is None)
    assert matrix.nbytes == read.nbytes
    assert torch.equal(matrix.dequantised(), again.dequantised())
    assert torch.equal(source.get(name, torch.float32, CPU), matrix.dequantised())
    assert abs(float(matrix.dequantised().std()) - 0.02) < 0.001
    assert source.get_quantised("lm_head.weight") is source.get_quantised("model.embed_tokens.weight") is None
    assert source.get_quantised("model.norm.weight") is None


def test_dummy_experts_generate(dummies):
    path = dummies(AWQ, MIXTRAL)
    expected = tokens_of(path, load_format="dummy", quantization="none")
    assert tokens_of(path, load_format="dummy", quantization="stored") == expected
    expert = f"{LAYER}block_sparse_moe.experts.1.w2.weight"
    assert open_checkpoint(path, "dummy").weights.get_quantised(expert).shape == (64, 128)


def test_dummy_weights_that_groups_do_not_divide_are_refused(dummies):
    weights = open_checkpoint(dummies(AWQ | {"group_size": 128}), "dummy").weights
    with pytest.raises(CheckpointError, match=r"mlp\.up_proj: groups of 128 of its 64 inputs are not supported"):
        weights.get_quantised(f"{LAYER}mlp.up_proj.weight")
