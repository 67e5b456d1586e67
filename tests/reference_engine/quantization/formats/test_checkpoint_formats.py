"""Public formats of quantised checkpoints: what modules decode to, what is written, and what is refused."""

import json

import numpy as np
import pytest
import torch
from transformers import AwqConfig, GPTQConfig

from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.quantization.formats.base import IntegerScheme
from bakeoff.reference_engine.quantization.formats.registry import READERS, format_of, integer_format
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.rounding import from_codes
from tests.reference_engine import quantised_files as files
from tests.reference_engine.quantised_files import AWQ, CASES, GPTQ, Drawn, compressed, drawn_for

MODULE = "model.layers.0.mlp.up_proj"
EVERY_CASE = pytest.mark.parametrize("case", CASES)


def format_named(case):
    return format_of({"quantization_config": CASES[case][0]}, "config.json")


@EVERY_CASE
def test_what_the_definition_writes_is_decoded_exactly(case):
    drawn = drawn_for(case)
    matrix = format_named(case).decode(MODULE, CASES[case][2](drawn))
    assert torch.equal(matrix.dequantised(), drawn.weight)
    assert (matrix.offsets is None) == drawn.symmetric
    assert (matrix.order is None) == ("act-order" not in case)
    assert matrix.group == CASES[case][1].get("group", 32)
    assert matrix.scales.dtype == torch.float16


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"packed in act-order"}))  # which the library has dropped
def test_encoding_writes_what_the_definition_writes(case):
    form, tensors = format_named(case), CASES[case][2](drawn_for(case))
    written = form.encode(MODULE, form.decode(MODULE, tensors))
    assert set(written) == set(tensors) <= set(form.parts)
    for part, tensor in tensors.items():
        assert written[part].dtype == tensor.dtype
        assert written[part].is_contiguous()
        assert torch.equal(written[part], tensor), part


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("gptq", IntegerScheme(4, 32)),
        ("gptq", IntegerScheme(8, None, symmetric=False)),
        ("gptq", IntegerScheme(4, 64, symmetric=False, act_order=True)),
        ("awq", IntegerScheme(4, 64, symmetric=False)),
        ("pack-quantized", IntegerScheme(4, 32)),
        ("pack-quantized", IntegerScheme(8, 32, symmetric=False)),
    ],
)
def test_what_is_encoded_comes_back(name, scheme, dtype):
    """After config.json, too, which is all that a reader knows of a format."""
    written = integer_format(name, scheme, plain=["model.layers.1.mlp.down_proj"])
    raw = json.loads(json.dumps(written.config()))
    read = format_of({"quantization_config": raw}, "config.json")
    assert raw["quant_method"] in READERS
    assert read == written
    assert (read.scheme(MODULE), read.scheme("model.layers.1.mlp.down_proj")) == (scheme, None)
    assert read.scheme("lm_head") is read.scheme("model.embed_tokens") is None
    rng = np.random.default_rng(3)
    for rows, columns in ((8, 64), (40, 128), (24, 192)):
        groups = columns // (scheme.group_size or columns)
        codes = torch.from_numpy(rng.integers(0, 1 << scheme.bits, (rows, columns)))
        scales = torch.from_numpy(rng.uniform(0.001, 3, (rows, groups))).to(dtype)
        zeros = None if scheme.symmetric else torch.from_numpy(rng.integers(0, 1 << scheme.bits, (rows, groups)))
        order = torch.from_numpy(rng.permutation(columns)) if scheme.act_order else None
        matrix = from_codes(codes, scales, zeros, scheme.bits, order)
        back = read.decode(MODULE, written.encode(MODULE, matrix))
        assert torch.equal(back.dequantised(), matrix.dequantised())
        assert torch.equal(back.scales, matrix.scales)
        if not scheme.act_order:  # the order within a group is not kept
            assert torch.equal(back.codes, matrix.codes)
            assert back.order is None


def test_an_output_count_that_fills_no_word_is_padded_where_the_library_pads():
    form = integer_format("pack-quantized", IntegerScheme(4, 32, symmetric=False))
    drawn = Drawn(np.random.default_rng(1), 5, 64)
    written = form.encode(MODULE, form.decode(MODULE, files.pack_quantized(drawn)))
    assert written["weight_zero_point"].shape == (1, 2)
    assert torch.equal(form.decode(MODULE, written).dequantised(), drawn.weight)


def test_early_files_of_compressed_tensors():
    """Zero points in bytes, one scale for all, and a g_idx that says nothing yet."""
    drawn = Drawn(np.random.default_rng(1), 8, 64)
    zeros = files.int_quantized(drawn)["weight_zero_point"]
    parts = files.pack_quantized(drawn) | {"weight_zero_point": zeros, "weight_g_idx": torch.full((64,), -1)}
    form = format_of({"compression_config": compressed("pack-quantized", symmetric=False)}, "x")
    assert torch.equal(form.decode(MODULE, parts).dequantised(), drawn.weight)
    early_form = format_of({"quantization_config": compressed("int-quantized", num_bits=8, strategy="tensor")}, "x")
    codes = torch.tensor([[-128, 127], [3, 0]], dtype=torch.int8)
    parts = {"weight": codes, "weight_scale": torch.tensor([0.5])}
    assert torch.equal(early_form.decode(MODULE, parts).dequantised(), codes * 0.5)


def test_a_zero_point_of_0_in_version_1_of_gptq_is_read_but_not_written():
    form = format_named("gptq with zero points")
    drawn = Drawn(np.random.default_rng(1), 8, 64)
    assert (drawn.zeros == 0).any()
    parts = files.gptq(drawn) | {"qzeros": files.words((drawn.zeros.T - 1) % 16, 4)}
    matrix = form.decode(MODULE, parts)
    assert torch.equal(matrix.dequantised(), drawn.weight)
    with pytest.raises(ConfigError, match="cannot store a zero point of 0; write gptq_v2"):
        form.encode(MODULE, matrix)
    assert integer_format("gptq", IntegerScheme(4, 32, symmetric=False)).config()["checkpoint_format"] == "gptq_v2"


@pytest.mark.parametrize(
    ("name", "scheme", "changes", "message"),
    [
        ("awq", IntegerScheme(4, 32, symmetric=False), {}, "up_proj has no zero points, and the format needs them"),
        ("gptq", IntegerScheme(4, 32), {"offsets": torch.zeros(8, 2)}, "has zero points, and the format is symmetric"),
        ("gptq", IntegerScheme(8, 32), {}, "has 4 bits instead of 8"),
        ("gptq", IntegerScheme(4, 64), {}, "has groups of 32 inputs instead of 64"),
        ("gptq", IntegerScheme(4, None), {}, "has groups of 32 inputs instead of 64"),
        ("gptq", IntegerScheme(4, 32), {"order": torch.randperm(64)}, "has scattered groups, and the format has none"),
        ("gptq", IntegerScheme(4, 32, symmetric=False), {"offsets": torch.full((8, 2), -0.5)}, "zero is not one of"),
        ("gptq", IntegerScheme(4, 32, symmetric=False), {"offsets": torch.ones(8, 2)}, "zero is not one of its codes"),
    ],
)
def test_a_matrix_that_does_not_fit_the_format_is_refused(name, scheme, changes, message):
    settings = {"scales": torch.ones(8, 2), "offsets": None, "bits": 4} | changes
    matrix = IntegerMatrix(torch.zeros(8, 32, dtype=torch.uint8), **settings)
    with pytest.raises(ConfigError, match=message):
        integer_format(name, scheme).encode(MODULE, matrix)


def test_what_a_format_cannot_hold_is_refused():
    narrow = from_codes(torch.zeros(6, 32), torch.ones(6, 1), torch.ones(6, 1), 4)
    for name in ("gptq", "awq"):
        form = integer_format(name, IntegerScheme(4, 32, symmetric=False))
        with pytest.raises(ConfigError, match=r"8 outputs.* in a word, which does not divide"):
            form.encode(MODULE, narrow)
        with pytest.raises(ConfigError, match="lm_head stays plain in this format"):
            form.encode("lm_head", narrow)
    turned = from_codes(torch.zeros(8, 64), torch.ones(8, 2), None, 4, torch.randperm(64))
    with pytest.raises(ConfigError, match="no longer reads act-order; write gptq"):
        format_named("packed in act-order").encode(MODULE, turned)
    for name, scheme, message in (
        ("awq", IntegerScheme(4), "awq is for 4 bits with zero points"),
        ("pack-quantized", IntegerScheme(4, act_order=True), "no act-order any more; write gptq"),
    ):
        with pytest.raises(ConfigError, match=message):
            integer_format(name, scheme)


def test_transformers_reads_the_settings():
    settings = integer_format("gptq", IntegerScheme(8, 64, symmetric=False, act_order=True)).config()
    config = GPTQConfig.from_dict(settings)
    assert (config.bits, config.group_size, config.sym, config.desc_act) == (8, 64, False, True)
    assert config.format == "gptq_v2"
    config = AwqConfig.from_dict(
        integer_format("awq", IntegerScheme(4, None, symmetric=False), plain=["v_proj"]).config()
    )
    assert (config.bits, config.group_size, config.zero_point) == (4, -1, True)
    assert (config.format, config.modules_to_not_convert) == ("gemm", ["v_proj"])


def test_modules_that_stay_plain():
    dynamic = {"-:.*down_proj": {}, "+:.*layers\\.1\\..*": {"bits": 8, "group_size": 64}}
    gptq = format_of({"quantization_config": GPTQ | {"dynamic": dynamic, "lm_head": True}}, "x")
    assert gptq.scheme("model.layers.1.mlp.down_proj") is None
    assert gptq.scheme("model.layers.1.mlp.up_proj") == IntegerScheme(8, 64)
    assert gptq.scheme("model.layers.0.mlp.up_proj") == gptq.scheme("lm_head") == IntegerScheme(4, 32)
    assert format_of({"quantization_config": gptq.config()}, "x") == gptq
    awq = format_of({"quantization_config": AWQ | {"modules_to_not_convert": ["self_attn"]}}, "x")
    assert awq.scheme("model.layers.0.self_attn.q_proj") is None
    assert awq.scheme("model.layers.0.mlp.up_proj") is not None
    config = compressed("pack-quantized", ignore=["lm_head", "re:.*layers\\.0\\..*", "model.layers.1.mlp.up_proj"])
    byte = compressed("int-quantized", num_bits=8, targets=["re:.*o_proj$", "Embedding"])["config_groups"]["group_0"]
    config["config_groups"] = {"group_1": byte | {"format": "int-quantized"}} | config["config_groups"]
    mixed = format_of({"quantization_config": config}, "x")
    wanted = {"model.layers.1.self_attn.o_proj": 8, "model.embed_tokens": 8, "model.layers.1.mlp.down_proj": 4}
    assert {module: mixed.scheme(module).bits for module in wanted} == wanted
    assert [
        mixed.scheme(name) for name in ("lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.mlp.up_proj")
    ] == [None] * 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "aqlm"}, "config.json: quant_method 'aqlm' is not supported, these are: 'awq', "),
        ({"bits": 4}, "quant_method None is not supported"),
        ([4], "a field of quantization_config is not of its type"),
        (GPTQ | {"bits": 3}, "bits 3 is not supported, only 4 or 8 is"),
        ({"quant_method": "gptq"}, "quantization_config has no field 'bits'"),
        (GPTQ | {"group_size": "many"}, "a field of quantization_config is not of its type"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported, only"),
        (GPTQ | {"dynamic": {"x": {"bits": 2}}}, "bits 2 is not supported"),
        (AWQ | {"version": "GEMV"}, "version 'gemv' is not supported, only 'gemm' is"),
        (AWQ | {"zero_point": False}, "zero_point False is not supported"),
        (AWQ | {"bits": 8}, "bits 8 is not supported, only 4 is"),
        (compressed("nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized' is not supported, only 'pack-quantized' "),
        (compressed("pack-quantized", type="float"), "type 'float' is not supported, only 'int' is"),
        (compressed("pack-quantized", num_bits=2), "num_bits 2 is not supported"),
        (compressed("pack-quantized", strategy="block"), "strategy 'block' is not supported, only 'group' or "),
        (compressed("pack-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity 'sparse-24"),
        (compressed("pack-quantized") | {"transform_config": {"config_groups": {"u": 1}}}, "transform_config .* not"),
        (compressed("pack-quantized") | {"config_groups": {"W4A16": ["Linear"]}}, "is not of its type"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_one_line(config, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        format_of({"quantization_config": config}, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("gptq", {"qzeros": None}, "its tensor qzeros is missing"),
        ("gptq in act-order", {"g_idx": None}, "its tensor g_idx is missing"),
        ("gptq in act-order", {"g_idx": torch.arange(64) // 33}, "does not give each of 2 groups 32 of 64 inputs"),
        ("gptq", {"scales": torch.ones(2, 8)}, r"scales and zero points of shapes .*\(8, 2\).* codes of \(40, 64\)"),
        ("gptq", {"scales": torch.ones(4, 40), "qzeros": torch.zeros(4, 5, dtype=torch.int32)}, "groups of 16 of"),
        ("packed with zero points", {"weight_zero_point": None}, "weight_zero_point is missing"),
        ("bytes", {"weight": None}, "its tensor weight is missing"),
        ("bytes", {"weight": torch.zeros(40, 64)}, "its weight is torch.float32, and int-quantized keeps int8"),
    ],
)  # fmt: skip
def test_damaged_modules_are_named(case, changes, message):
    parts = CASES[case][2](drawn_for(case)) | changes
    with pytest.raises(CheckpointError, match=rf"^{MODULE}: .*{message}"):
        format_named(case).decode(MODULE, {part: tensor for part, tensor in parts.items() if tensor is not None})
