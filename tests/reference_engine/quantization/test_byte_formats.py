"""Checkpoints in FP8, INT8 with INT8 activations, and bitsandbytes' NF4 and INT8, written in NumPy by definition."""

import json

import numpy as np
import pytest
import torch

from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.quantization import fp8, nf4
from bakeoff.reference_engine.quantization.formats.base import IntegerScheme
from bakeoff.reference_engine.quantization.formats.registry import READERS, format_for, format_of
from bakeoff.reference_engine.quantization.formats.schemes import Fp8Scheme, Int8Scheme, Nf4Scheme
from bakeoff.reference_engine.quantization.llm_int8 import LlmInt8Matrix
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix
from bakeoff.reference_engine.quantization.rounding import absmax, zero_point
from bakeoff.reference_engine.quantization.w8a8 import W8A8Matrix
from tests.reference_engine import quantised_files as files
from tests.reference_engine.quantised_files import TINY, compressed, tokens_of

MODULE = "model.layers.0.mlp.up_proj"


class Drawn:
    """The tensors of a module, and the weight that they stand for."""

    def __init__(self, tensors, weight):
        self.tensors, self.weight = tensors, torch.from_numpy(weight.astype(np.float32))


def fp8_tensors(rng, rows, columns, *, per_tensor=False):
    """Bits of an E4M3 number: a sign, 4 of the exponent plus 7, 3 of the mantissa; exponent 0 has no leading one."""
    bits = rng.integers(0, 256, (rows, columns)).astype(np.uint8)
    bits[(bits & 0x7F) == 0x7F] = 0  # not a number
    exponents, mantissas = (bits >> 3 & 15).astype(int), (bits & 7) / 8
    sizes = np.where(exponents > 0, 1 + mantissas, mantissas) * 2.0 ** (np.maximum(exponents, 1) - 7)
    scales = rng.uniform(0.001, 0.002, (1,) if per_tensor else (rows, 1)).astype(np.float32)
    tensors = {
        "weight": torch.from_numpy(bits).view(torch.float8_e4m3fn),
        "weight_scale": torch.from_numpy(scales),
    }
    return Drawn(tensors, np.where(bits & 0x80, -sizes, sizes) * scales.astype(np.float64))


def int8_codes(rng, rows, columns):
    """Each output has the largest code, so that rounding its weights again gives the same."""
    codes = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    codes[:, 3] = 127
    return codes


def w8a8_tensors(rng, rows, columns):
    codes, scales = int8_codes(rng, rows, columns), rng.uniform(0.001, 0.004, (rows, 1)).astype(np.float32)
    tensors = {"weight": torch.from_numpy(codes), "weight_scale": torch.from_numpy(scales)}
    return Drawn(tensors, codes * scales)


def llm_int8_tensors(rng, rows, columns):
    codes, largest = int8_codes(rng, rows, columns), rng.uniform(0.1, 0.5, rows).astype(np.float32)
    tensors = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return Drawn(tensors, codes * (largest / np.float32(127))[:, None])


def nf4_tensors(rng, rows, columns, *, nested=False):
    codes = rng.integers(0, 16, rows * columns).astype(np.uint8)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [rows, columns]}
    tensors = {
        "weight": torch.from_numpy(codes[::2] << 4 | codes[1::2])[:, None],
        "weight.quant_map": torch.tensor(nf4.VALUES),
    }
    blocks = codes.size // 64
    if nested:
        scale_codes, table = rng.integers(0, 256, blocks).astype(np.uint8), nf4.dynamic_map().numpy()
        largest = rng.uniform(0.05, 0.1, -(-blocks // 256)).astype(np.float32)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
        scales = table[scale_codes] * largest[np.arange(blocks) // 256] + np.float32(0.25)
        tensors |= {
            "weight.absmax": torch.from_numpy(scale_codes),
            "weight.nested_absmax": torch.from_numpy(largest),
            "weight.nested_quant_map": torch.from_numpy(table.copy()),
        }
    else:
        scales = rng.uniform(0.1, 0.5, blocks).astype(np.float32)
        tensors["weight.absmax"] = torch.from_numpy(scales)
    text = json.dumps(state).encode()
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
    weight = np.array(nf4.VALUES, dtype=np.float32)[codes].reshape(-1, 64) * scales[:, None]
    return Drawn(tensors, weight.reshape(rows, columns))


def dynamic(kind, storage, weights="channel", **activations):
    """A `quantization_config` of compressed-tensors whose activations are quantised as they come."""
    config = compressed(storage, num_bits=8, type=kind, strategy=weights, group_size=None)
    config["config_groups"]["group_0"]["input_activations"] = {
        "num_bits": 8, "type": kind, "strategy": "token", "dynamic": True, "symmetric": True, "observer": None,
    } | activations  # fmt: skip
    return config


FLOAT, INT = dynamic("float", "float-quantized"), dynamic("int", "int-quantized")
PLAIN_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
LLM_INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}


def per_tensor(rng, rows, columns):
    return fp8_tensors(rng, rows, columns, per_tensor=True)


def nested(rng, rows, columns):
    return nf4_tensors(rng, rows, columns, nested=True)


CASES = {
    "fp8 by channels": (FLOAT, fp8_tensors, Fp8Scheme(), fp8.Fp8Matrix),
    "fp8 by tensors": (dynamic("float", "float-quantized", "tensor"), per_tensor, Fp8Scheme(True), fp8.Fp8Matrix),
    "fp8 naive": (dynamic("float", "naive-quantized"), fp8_tensors, Fp8Scheme(), fp8.Fp8Matrix),
    "fp8 of vLLM": (PLAIN_FP8, per_tensor, Fp8Scheme(True), fp8.Fp8Matrix),
    "w8a8": (INT, w8a8_tensors, Int8Scheme(), W8A8Matrix),
    "nf4": (NF4, nf4_tensors, Nf4Scheme(), LookUpMatrix),
    "nf4 nested": (NF4 | {"bnb_4bit_use_double_quant": True}, nested, Nf4Scheme(nested=True), LookUpMatrix),
    "llm-int8": (LLM_INT8, llm_int8_tensors, Int8Scheme(LlmInt8Matrix), LlmInt8Matrix),
}
"""`quantization_config`, what writes a module, and what that is read as."""
EVERY_CASE = pytest.mark.parametrize("case", CASES)
SCHEMES = [*{scheme: None for _, _, scheme, _ in CASES.values()}]


def format_named(case):
    return format_of({"quantization_config": CASES[case][0]}, "config.json")


def drawn_for(case, rows=40, columns=128):
    return CASES[case][1](np.random.default_rng(0), rows, columns)


@EVERY_CASE
def test_what_the_definition_writes_is_decoded_exactly(case):
    drawn, form = drawn_for(case), format_named(case)
    matrix = form.decode(MODULE, drawn.tensors)
    assert form.scheme(MODULE) == CASES[case][2]
    assert type(matrix) is CASES[case][3]
    assert torch.equal(matrix.dequantised(), drawn.weight)
    for tensor in drawn.tensors.values():  # which may be views of a file
        tensor.zero_()
    assert torch.equal(matrix.dequantised(), drawn.weight)


@EVERY_CASE
def test_encoding_writes_what_the_definition_writes(case):
    form, tensors = format_named(case), drawn_for(case).tensors
    written = form.encode(MODULE, form.decode(MODULE, tensors))
    assert set(written) == set(tensors) <= set(form.parts)
    for part, tensor in tensors.items():
        assert (written[part].dtype, written[part].shape) == (tensor.dtype, tensor.shape)
        assert written[part].is_contiguous()
        if part == "SCB":  # 127 times a 127th
            torch.testing.assert_close(written[part], tensor, rtol=2**-23, atol=0)
        else:
            assert torch.equal(written[part].float(), tensor.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_is_encoded_comes_back(scheme, dtype):
    """After config.json, too, which is all that a reader knows of a format."""
    written = format_for(scheme, plain=["model.layers.1.mlp.down_proj"])
    raw = json.loads(json.dumps(written.config()))
    read = format_of({"quantization_config": raw}, "config.json")
    assert raw["quant_method"] in READERS
    assert read == written
    assert (read.scheme(MODULE), read.scheme("model.layers.1.mlp.down_proj")) == (scheme, None)
    assert read.scheme("lm_head") is read.scheme("model.embed_tokens") is None
    matrix = scheme.nearest(torch.randn(24, 192, generator=torch.Generator().manual_seed(1)).to(dtype))
    back = read.decode(MODULE, written.encode(MODULE, matrix))
    assert type(back) is type(matrix)
    assert torch.equal(back.codes.view(torch.uint8), matrix.codes.view(torch.uint8))
    cpu = torch.device("cpu")
    torch.testing.assert_close(
        back.to(cpu, torch.float32).dequantised(), matrix.to(cpu, torch.float32).dequantised(), rtol=2**-22, atol=0
    )


def test_int8_matrices_of_rows_are_written_for_int8_products():
    weight = torch.randn(8, 64)
    form = format_for(Int8Scheme())
    assert torch.equal(form.encode(MODULE, absmax(weight, 8, 64))["weight"], absmax(weight, 8, 64).codes)


@pytest.mark.parametrize(
    ("scheme", "matrix", "message"),
    [
        (Fp8Scheme(), W8A8Matrix.of(torch.ones(2, 64)), r"up_proj is not in FP8 \(E4M3\)"),
        (Fp8Scheme(per_tensor=True), fp8.quantised(torch.eye(2, 64) + torch.ones(2, 1)), None),
        (Fp8Scheme(per_tensor=True), fp8.quantised(torch.rand(2, 64)), "has several scales, and the format"),
        (Int8Scheme(), absmax(torch.ones(2, 64), 8, 32), "is not of 8 bits with a scale for each output"),
        (Int8Scheme(), zero_point(torch.ones(2, 64), 8, 64), "is not of 8 bits with a scale for each output"),
        (Int8Scheme(), absmax(torch.ones(2, 64), 4, 64), "is not of 8 bits with a scale for each output"),
        (Nf4Scheme(), absmax(torch.ones(2, 64), 4, 64), "is not in NF4 with blocks of 64"),
        (Nf4Scheme(), nf4.quantised(torch.ones(2, 64), nested=True), "keeps plain scales, and its scales are others"),
        (Nf4Scheme(nested=True), nf4.quantised(torch.ones(2, 64)), "keeps codes of scales, and its scales are others"),
    ],
)  # fmt: skip
def test_a_matrix_that_does_not_fit_the_format_is_refused(scheme, matrix, message):
    form = format_for(scheme)
    if message is None:
        assert form.encode(MODULE, matrix)["weight_scale"].shape == (1,)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        form.encode(MODULE, matrix)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="lm_head stays plain in this format"):
        form.encode("lm_head", matrix)


def test_formats_of_whole_numbers_refuse_other_matrices():
    form = format_of({"quantization_config": files.GPTQ}, "x")
    with pytest.raises(ConfigError, match="up_proj is not of whole numbers in groups"):
        form.encode(MODULE, nf4.quantised(torch.ones(8, 64)))


@pytest.mark.parametrize("change", [{"dynamic": False}, {"strategy": "tensor"}, {"symmetric": False}, {"num_bits": 4}])
def test_other_activations_leave_int8_weights_to_the_dtype_of_the_model(change):
    config = dynamic("int", "int-quantized", **change)
    assert format_of({"quantization_config": config}, "x").scheme(MODULE) == IntegerScheme(8, None)
    config = dynamic("int", "int-quantized")
    config["config_groups"]["group_0"]["input_activations"] = None
    form = format_of({"quantization_config": config}, "x")
    assert form.scheme(MODULE) == IntegerScheme(8, None)
    assert format_of({"quantization_config": form.config()}, "x") == form


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dynamic("float", "float-quantized", "block"), "strategy 'block' is not supported, only 'channel' or 'tensor'"),
        (dynamic("int", "float-quantized"), "type 'int' is not supported, only 'float' is"),
        (dynamic("float", "float-quantized", dynamic=False), "supported only if dynamic, with a scale for each token"),
        (dynamic("float", "float-quantized", strategy="tensor"), "supported only if dynamic, with a scale for each"),
        (PLAIN_FP8 | {"activation_scheme": "static"}, "activation_scheme 'static' is not supported, only 'dynamic' is"),
        (PLAIN_FP8 | {"weight_block_size": [128, 128]}, "weight_block_size .* is not supported"),
        ({"quant_method": "fp8"}, "quantization_config has no field 'activation_scheme'"),
        (NF4 | {"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type 'fp4' is not supported, only 'nf4' is"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb_4bit_quant_type 'fp4' is not supported"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit False is not supported, only True is"),
        (LLM_INT8 | {"llm_int8_threshold": 4.0}, "llm_int8_threshold 4.0 is not supported, only 6.0 is"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_one_line(config, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        format_of({"quantization_config": config}, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("fp8 by channels", {"weight": None}, "its tensor weight is missing"),
        ("fp8 by channels", {"weight": torch.zeros(40, 128)}, "its weight is torch.float32, and FP8 checkpoints keep"),
        ("fp8 by channels", {"weight_scale": torch.ones(2, 1)}, r"scales of shape \(2, 1\) .* only one scale or one"),
        ("w8a8", {"weight": torch.zeros(40, 128)}, "its weight is torch.float32, and int-quantized keeps int8"),
        ("w8a8", {"weight_scale": torch.ones(40, 2)}, "has 2 scales an output; its config says one"),
        ("llm-int8", {"SCB": torch.ones(2)}, r"does not fit to SCB of shape \(2,\)"),
        ("llm-int8", {"weight_format": torch.tensor(1)}, "its weight_format is not row by row"),
        ("nf4", {"weight.absmax": torch.ones(3)}, "tensor weight.absmax has 3 elements, not 80"),
        ("nf4", {"weight.quant_map": None}, "tensor weight.quant_map is missing"),
    ],
)  # fmt: skip
def test_damaged_modules_are_named(case, changes, message):
    parts = drawn_for(case).tensors | changes
    with pytest.raises(CheckpointError, match=rf"^{MODULE}.*{message}"):
        format_named(case).decode(MODULE, {part: tensor for part, tensor in parts.items() if tensor is not None})


@EVERY_CASE
def test_random_matrices_have_the_layout_of_the_config(case):
    form = format_named(case)
    read, scheme = form.decode(MODULE, drawn_for(case).tensors), form.scheme(MODULE)
    matrix, again = (scheme.random(MODULE, (40, 128), 0.02, seed=7) for _ in range(2))
    assert type(matrix) is type(read)
    assert (matrix.layout, matrix.nbytes, matrix.shape) == (read.layout, read.nbytes, read.shape)
    assert torch.equal(matrix.dequantised(), again.dequantised())
    assert abs(float(matrix.dequantised().std()) - 0.02) < 0.001


def test_blocks_that_span_rows_have_no_random_matrix():
    with pytest.raises(CheckpointError, match="up_proj: its blocks of 64 would span rows of 96 inputs"):
        Nf4Scheme().random(MODULE, (8, 96), 0.02, 0)


@pytest.fixture
def pair(tmp_path, checkpoint_dir):
    """A model in a format, and its plain twin."""

    def write(case, raw=TINY):
        config, draw = CASES[case][:2]
        folders = files.write_pair(tmp_path, config, draw, lambda drawn: drawn.tensors, raw=raw)
        return files.with_tokenizer(folders, checkpoint_dir)

    return write


@pytest.mark.parametrize(
    ("case", "twin_quantization"), [("fp8 by tensors", "none"), ("nf4 nested", "none"), ("w8a8", "w8a8")]
)
def test_a_model_generates_the_tokens_of_its_dequantised_twin(pair, case, twin_quantization):
    """The twin of W8A8 rounds its weights to the same codes again, and its activations as well."""
    quantised, twin = pair(case)
    stored, plain = open_checkpoint(quantised).weights, open_checkpoint(twin).weights
    assert set(stored.names()) == set(plain.names())
    assert all(torch.equal(stored.get(name), plain.get(name)) for name in plain.names())
    assert tokens_of(quantised, quantization="stored") == tokens_of(twin, quantization=twin_quantization)


def test_blocks_that_span_rows_are_read_as_plain_weights(pair):
    quantised, twin = (open_checkpoint(folder).weights for folder in pair("nf4", TINY | {"intermediate_size": 96}))
    names = [f"model.layers.0.mlp.{name}_proj.weight" for name in ("up", "down")]
    assert [quantised.get_quantised(name) is None for name in names] == [False, True]
    assert all(torch.equal(quantised.get(name), twin.get(name)) for name in twin.names())
