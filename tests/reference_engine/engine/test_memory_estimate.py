"""Memory estimated from config.json against what engines of every method and family really keep."""

import json

import pytest
import torch

from bakeoff.reference_engine.engine.executors import attention_of, max_rows_of, run_largest, storage_of
from bakeoff.reference_engine.engine.gpu_memory import largest_batch
from bakeoff.reference_engine.engine.memory_estimate import check_weights_fit, estimate_memory
from bakeoff.reference_engine.engine.resolution import demand_of, resolve_config
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kernels import coded_products
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.dummy import DummyWeights
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.models.costs import ModelCosts
from bakeoff.reference_engine.models.execution import LocalExecutor
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.models.weight_bytes import Loading, quantised_bytes
from bakeoff.reference_engine.quantization import fp8
from bakeoff.reference_engine.quantization.formats.registry import format_of
from bakeoff.reference_engine.quantization.integer_matrix import unpack
from bakeoff.reference_engine.quantization.methods import METHODS
from bakeoff.reference_engine.quantization.rounding import absmax, zero_point
from tests.acceptance.quantisation.memory import held_bytes, peak_bytes
from tests.reference_engine.models.tiny_families import COMMON, FAMILIES, engine_config
from tests.reference_engine.quantised_files import CASES
from tests.reference_engine.quantization.test_byte_formats import CASES as BYTE_CASES

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WIDE = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
NAMES = {
    "Gemma3": "gemma3_text", "Qwen2Moe": "qwen2_moe", "Qwen3Moe": "qwen3_moe", "DeepseekV2": "deepseek_v2",
    "DeepseekV3": "deepseek_v3", "GptOss": "gpt_oss",
}  # fmt: skip
"""Where the name of a class is not the lower-case name of its family."""
FORMATS = {name: config for name, (config, *_) in {**CASES, **BYTE_CASES}.items()}


def family(name):
    kind, changes = FAMILIES[name]
    return COMMON | {"model_type": NAMES.get(kind, kind.lower())} | changes


def loaded(raw, quantization, dtype=torch.float32, checkpoint_format=None):
    """The bytes that a random model keeps, and those that are estimated."""
    config = config_from_hf(raw, "x")
    weights, length = DummyWeights(config, checkpoint_format), 16
    model = build_model(config, weights, max_positions=length, dtype=dtype, device=CPU, quantization=quantization)
    loading = Loading(dtype, CPU, quantization, checkpoint_format)
    costs = ModelCosts(config, dtype.itemsize, quantised=quantised_bytes(config, loading))
    return held_bytes(model) - held_bytes(model._rotaries), costs.weight_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("method", ["none", *METHODS])
def test_weights_of_each_method(method, dtype):
    held, counted = loaded(WIDE, method, dtype)
    assert counted == pytest.approx(held, rel=0.015 if method == "nf4-double" else 0.001)  # tables are shared


@pytest.mark.parametrize("method", ["int4", "fp8", "nf4"])
@pytest.mark.parametrize(
    "name", ["llama, three layers a cache", "qwen3", "gemma3", "phi3", "mixtral", "qwen3_moe, some layers dense",
             "deepseek_v2, all options", "deepseek_v3", "gemma2", "gpt_oss", "qwen2_moe", "smollm3"],
)  # fmt: skip
def test_weights_of_each_family(name, method):
    held, counted = loaded({**family(name), "tie_word_embeddings": False}, method)
    assert counted == pytest.approx(held, rel=0.015)


@pytest.mark.parametrize("quantization", ["auto", "stored"])
@pytest.mark.parametrize("case", FORMATS)
def test_weights_of_quantised_checkpoints(case, quantization):
    held, counted = loaded(WIDE, quantization, checkpoint_format=format_of({"quantization_config": FORMATS[case]}, "x"))
    assert counted == pytest.approx(held, rel=0.015)


@pytest.mark.parametrize("quantise", [absmax, zero_point])
@pytest.mark.parametrize(("bits", "columns", "group"), [(4, 512, 128), (4, 288, 32), (8, 96, 96), (8, 512, 128)])
def test_codes_on_a_gpu(quantise, bits, columns, group):
    matrix = quantise(torch.randn(64, columns), bits, group)
    codes = matrix.codes if bits == 8 else unpack(matrix.codes)
    words = coded_products.Words.of(codes, matrix.scales, matrix.offsets, bits)
    parts = [part for part in (words.words, words.scales, words.zeros) if part is not None]
    assert matrix.held_bytes(CUDA, torch.float16) == sum(part.nbytes for part in parts)


@pytest.mark.parametrize("cache", ["auto", "int8", "fp8", "int4"])
@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "llama, two layers a cache", "phi3", "mixtral", "qwen3_moe", "deepseek_v2"]
)
def test_caches_with_their_scales(name, cache, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(family(name)))
    checkpoint = open_checkpoint(tmp_path, "dummy")
    config = resolve_config(engine_config(tmp_path, kv_cache_dtype=cache), checkpoint.config)
    demand = demand_of(config, checkpoint.config)
    storage = storage_of(config, demand, config.num_blocks, CPU)
    assert estimate_memory(config, checkpoint, CPU).kv_cache == storage.bytes
    costs = ModelCosts(checkpoint.config, kv_bytes_each=4, kv_cache_dtype=cache)
    assert costs.kv_bytes_per_token == sum(demand.token_bytes)


@pytest.mark.parametrize(
    ("method", "columns"), [("w8a8", 512), ("w8a8", 64), ("fp8", 512), ("nf4", 128), ("mxfp4", 256)]
)
def test_a_product_takes_what_it_says(method, columns):
    matrix = METHODS[method].make(torch.randn(320, columns)).to(CPU, torch.float32)
    product, rows = matrix.linear(None), torch.randn(2048, columns)
    assert matrix.call_bytes(2048, CPU, torch.float32) == pytest.approx(peak_bytes(lambda: product(rows)), rel=0.1)


def test_many_rows_on_a_gpu_take_plain_numbers_or_codes_beside_the_result(monkeypatch):
    monkeypatch.setattr(fp8, "has_fp8_products", lambda device: device == CUDA)
    weight = torch.empty(128, 256, dtype=torch.bfloat16, device="meta")
    result = 100 * 128 * 2
    int4, of_fp8 = METHODS["int4"].make(weight), METHODS["fp8"].make(weight)
    assert int4.call_bytes(100, CUDA, torch.bfloat16) == result + 128 * 256 * 2
    assert of_fp8.call_bytes(100, CUDA, torch.bfloat16) == result + 100 * 256


@pytest.mark.parametrize("method", ["none", "w8a8", "fp8"])
def test_the_largest_step(method, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"intermediate_size": 2048}))
    checkpoint = open_checkpoint(tmp_path, "dummy")
    config = engine_config(tmp_path, quantization=method, max_num_seqs=4, max_num_batched_tokens=256, max_model_len=64)
    config = resolve_config(config, checkpoint.config)
    demand = demand_of(config, checkpoint.config)
    model = build_model(
        checkpoint.config, checkpoint.weights, max_positions=64, dtype=torch.float32, device=CPU, quantization=method
    )
    storage = storage_of(config, demand, config.num_blocks, CPU)
    executor = LocalExecutor(model, attention_of(config, storage), storage)
    batch, _ = largest_batch(demand, max_rows_of(config, demand))
    measured = peak_bytes(lambda: run_largest(executor, batch))
    assert estimate_memory(config, checkpoint, CPU).workspace == pytest.approx(measured, rel=0.1)


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    checkpoint = open_checkpoint(tmp_path, "dummy")
    config = engine_config(tmp_path, gpu_memory_utilization=0.5)
    weights = estimate_memory(config, checkpoint, CUDA).weights
    check_weights_fit(config, checkpoint, 2 * weights)
    with pytest.raises(ConfigError, match=r"the weights take 0\.00\d+ GiB, and .* 0\.5 of .* --cpu-offload-gb 0\.00"):
        check_weights_fit(config, checkpoint, weights)
    check_weights_fit(engine_config(tmp_path, gpu_memory_utilization=0.5, quantization="int4"), checkpoint, weights)


def test_what_is_offloaded_is_left_out_but_for_two_buffers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    checkpoint = open_checkpoint(tmp_path, "dummy")
    whole, less, least = (
        estimate_memory(engine_config(tmp_path, max_num_seqs=1, cpu_offload_gb=size), checkpoint, CUDA).weights
        for size in (0, 2 * 2**20 / 2**30, 1)
    )
    largest = 2 * 512 * 256 * 4  # gate and up
    layer = largest + 4 * (512 * 256 + 256 * (256 + 2 * 128) + 256 * 256)
    assert whole - less == 2 * 2**20 - 2 * largest
    assert whole - least == 2 * layer - 2 * largest
