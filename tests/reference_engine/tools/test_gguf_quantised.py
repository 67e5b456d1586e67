"""Whole GGUF files whose matrices stay in their blocks."""

import logging

import gguf
import numpy as np
import pytest
import torch

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.kernels import quantised
from bakeoff.reference_engine.kernels.blocks import FORMATS
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.gguf import GgufFile
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.quantization.blocks import BlockMatrix
from bakeoff.reference_engine.tools.evaluator import Sample, Scorer
from bakeoff.reference_engine.tools.gguf_copy import copy_gguf
from tests.reference_engine.gguf_blocks import random_blocks
from tests.reference_engine.loading.test_gguf import gguf_name, write_gguf

CPU = torch.device("cpu")
PLAIN = ("F32", "F16", "BF16")
NEAR_TIE = 1e-3  # nats; sums of float32 in another order move logits by less
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def stored_as(kind):
    """Values in a type; those of the K formats, which gguf cannot write, are random."""
    number = gguf.GGMLQuantizationType[kind]

    def encode(name, values):
        if kind.endswith("_K"):
            matrix = random_blocks(kind, *values.shape, seed=sum(name.encode()), size=0.5)
            return matrix.blocks.numpy(), number
        return gguf.quants.quantize(values, number), number

    return encode


def like_q4_k_m(name, values):
    """As llama.cpp mixes types: more bits for v_proj and down_proj; and up_proj, merged with gate_proj, plain."""
    kinds = {"v_proj": "Q6_K", "down_proj": "Q6_K", "embed": "Q6_K", "up_proj": "F16"}
    return stored_as(next((kind for part, kind in kinds.items() if part in name), "Q4_K"))(name, values)


@pytest.fixture(scope="module")
def models(make_model):
    """Models as wide as the blocks of K formats, with tied and untied embeddings."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.1}
    return {tied: make_model(**shape, tie_word_embeddings=tied) for tied in (True, False)}


@pytest.fixture
def written(tmp_path, models, checkpoint_dir):
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend

    def write(quantize, *, tied=True, **settings):
        return write_gguf(tmp_path / "wide.gguf", models[tied], tokenizer, quantize=quantize, **settings)

    return write


@pytest.mark.parametrize("kind", [*PLAIN, *FORMATS])
def test_every_type_is_read_and_its_blocks_mean_the_same(written, kind):
    file = GgufFile(written(stored_as(kind), tied=False))
    names = [name for name in file.names() if file.get(name).ndim == 2]
    assert len(names) == 2 * 7 + 2
    for name in names:
        blocks = file.get_quantised(name)
        if kind in PLAIN:
            assert blocks is None
        else:
            assert blocks.format.name == kind
            assert torch.equal(blocks.dequantised(), file.get(name)), name
    assert file.get_quantised("model.norm.weight") is None


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_types_hold_the_models_values(written, models, kind):
    file, dtype = GgufFile(written(stored_as(kind))), {"F32": torch.float32, "F16": torch.float16}
    expected = models[True].state_dict()[Q_PROJ].to(dtype.get(kind, torch.bfloat16)).float()
    assert torch.equal(file.get(Q_PROJ), expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [*FORMATS, "mixed"])
def test_greedy_tokens_are_those_of_the_dequantised_model(written, kind, tied):
    path = written(like_q4_k_m if kind == "mixed" else stored_as(kind), tied=tied)
    prompts = [[5, 9, 77], list(range(3, 60)), [200, 4] * 20]
    settings = {"dtype": "float32", "num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32, "threads": 1}
    in_blocks = LLM(path, quantization="stored", **settings)
    params = SamplingParams(max_tokens=12, temperature=0.0, logprobs=1)
    answers = in_blocks.generate(prompts, params, ignore_eos=True)
    plain = Scorer(open_checkpoint(path), "float32", "cpu")
    for number, answer in enumerate(answers):
        (completion,) = answer.completions
        score = plain.score(Sample(str(number), answer.prompt_token_ids, completion.token_ids, completion.logprobs))
        assert score.error is None
        assert score.max_regret <= NEAR_TIE
        assert score.max_abs_logprob_diff <= NEAR_TIE


@pytest.mark.parametrize(
    ("quantization", "has_kernel", "stays"),
    [("auto", True, True), ("auto", False, False), ("stored", False, True), ("none", True, False)],
)
def test_the_setting_decides_what_stays_in_blocks(written, monkeypatch, quantization, has_kernel, stays):
    monkeypatch.setattr(quantised, "has_kernel", lambda device, dtype: has_kernel)
    file = GgufFile(written(stored_as("Q8_0")))
    weights = Weights(file, torch.bfloat16, CPU, quantization=quantization)
    assert isinstance(weights.matrix(Q_PROJ), BlockMatrix) == stays
    assert (weights.quantised_bytes, weights.plain_bytes) == ((256 * 8 * 34, 0) if stays else (0, 256 * 256 * 2))


def test_the_log_says_how_much_is_kept(written, caplog):
    with caplog.at_level(logging.INFO, "bakeoff.reference_engine"):
        LLM(written(stored_as("Q8_0")), num_blocks=64, max_model_len=64, dtype="bfloat16")
        LLM(written(stored_as("Q8_0")), num_blocks=64, max_model_len=64, dtype="bfloat16", quantization="none")
    with_blocks, plain = (record.message for record in caplog.records if record.message.startswith("weights: "))
    assert with_blocks == "weights: 0.0 MiB in bfloat16, 1.3 MiB quantised"
    assert plain == "weights: 2.4 MiB in bfloat16, 0.0 MiB quantised"


def test_a_type_without_a_kernel_is_dequantised(written):
    file = GgufFile(written(gguf.GGMLQuantizationType.TQ2_0))
    assert file.get_quantised(Q_PROJ) is None
    assert set(file.get(Q_PROJ).unique().sign().tolist()) == {-1.0, 0.0, 1.0}


def test_a_type_that_cannot_be_dequantised_is_one_line_with_its_tensor(written, tmp_path):
    whole = gguf.GGMLQuantizationType.I32
    path = written(lambda name, values: (values.astype(np.int32), whole))
    message = rf"wide\.gguf: tensor {gguf_name(Q_PROJ)} has type I32, which cannot be dequantised; give a file in"
    with pytest.raises(CheckpointError, match=message) as caught:
        GgufFile(path).get(Q_PROJ)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="has type I32, which cannot be dequantised"):
        copy_gguf(path, tmp_path / "copy.gguf", dtype="float32", progress=lambda _: None)


def test_a_type_of_the_future_is_one_line_with_its_tensor(written):
    path = written(stored_as("Q8_0"))
    name = gguf_name(Q_PROJ).encode()
    content = bytearray(path.read_bytes())
    place = content.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions and two of them
    assert content[place] == gguf.GGMLQuantizationType.Q8_0
    content[place] = 250
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"wide\.gguf: tensor {name.decode()} has type 250, unknown to gguf"):
        GgufFile(path)


def test_biases_of_merged_projections_go_with_their_parts(tmp_path, make_model, checkpoint_dir):
    model = make_model(hidden_size=256, intermediate_size=512, attention_bias=True, mlp_bias=True)
    tokenizer = open_checkpoint(checkpoint_dir).tokenizer.backend
    path = write_gguf(tmp_path / "biased.gguf", model, tokenizer, quantize=like_q4_k_m)
    file, x = GgufFile(path), torch.randn(3, 256)
    parts = ("q_proj", "k_proj", "v_proj")
    prefix = "model.layers.1.self_attn."
    in_blocks, plain = (
        Weights(file, torch.float32, CPU, quantization=setting).linear(prefix, parts, has_bias=True)
        for setting in ("stored", "none")
    )
    torch.testing.assert_close(in_blocks(x), plain(x), atol=1e-4, rtol=1e-5)
