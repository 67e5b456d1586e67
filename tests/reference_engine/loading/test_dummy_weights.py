"""Weights without weight files: their names, shapes and values, and an engine over nothing but a config.json."""

import json

import pytest
import torch

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.errors import CheckpointError, RequestError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.dummy import DummyWeights
from bakeoff.reference_engine.loading.tokenizer import number_tokenizer, open_tokenizer
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.offline import LLM
from tests.reference_engine.server_calls import with_server

RAW = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
SETTINGS = {"num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32, "threads": 1, "dtype": "float32"}
CPU = torch.device("cpu")


@pytest.fixture
def config_only(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    return tmp_path


def dummy(**changes):
    return DummyWeights(config_from_hf(RAW | changes, "x"))


def test_a_name_always_gives_the_same_small_numbers():
    first, again = (dummy().get("model.layers.1.mlp.up_proj.weight", torch.float32, CPU) for _ in range(2))
    other = dummy().get("model.layers.0.mlp.up_proj.weight", torch.float32, CPU)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (96, 64)
    assert abs(float(first.std()) - 0.02) < 0.001
    assert abs(float(first.mean())) < 0.001


def test_weights_come_in_the_dtype_that_is_asked_for_and_norms_are_one():
    assert dummy().get("lm_head.weight", torch.bfloat16, CPU).dtype == torch.bfloat16
    assert set(dummy().get("model.norm.weight", torch.float32, CPU).tolist()) == {1.0}
    gemma = dummy(model_type="gemma3_text", hidden_activation="gelu_pytorch_tanh", head_dim=16)
    assert set(gemma.get("model.layers.0.self_attn.q_norm.weight", torch.float32, CPU).tolist()) == {0.0}


def test_a_tensor_that_the_config_does_not_imply_is_refused():
    with pytest.raises(CheckpointError, match=r"implies no tensor model\.norm\.bias"):
        dummy().get("model.norm.bias")


def test_token_ids_are_completed_from_a_config_alone(config_only):
    params = SamplingParams(max_tokens=4, temperature=0.0)
    llm, other = (LLM(config_only, load_format="dummy", **SETTINGS) for _ in range(2))
    by_ids, by_text = llm.generate([[7, 8, 9], "7 8 9"], params)
    tokens = by_ids.completions[0].token_ids
    assert len(tokens) == 4
    assert by_text == by_ids
    assert by_ids.completions[0].text == " ".join(map(str, tokens))
    assert other.generate([[7, 8, 9]], params)[0] == by_ids


def test_without_the_setting_weights_and_tokenizer_are_still_required(config_only):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        open_checkpoint(config_only)


def test_a_tokenizer_that_is_there_is_used(checkpoint_dir):
    assert open_tokenizer(checkpoint_dir, "dummy").encode("hello") == open_tokenizer(checkpoint_dir).encode("hello")


def test_the_stand_in_has_no_chat_and_reads_unknown_words_as_token_0():
    tokenizer = number_tokenizer(20)
    assert tokenizer.encode("3 nine 21 19") == [3, 0, 0, 19]
    assert tokenizer.decode([3, 19]) == "3 19"
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.render_chat([])


def test_a_server_completes_token_ids_from_a_config_alone(serve, tiny_config, config_only):
    async def test(s):
        body = {"model": "tiny", "prompt": [7, 8, 9], "max_tokens": 4, "temperature": 0}
        answer = await s.post("/v1/completions", body)
        assert answer["usage"]["completion_tokens"] == 4
        assert len(answer["choices"][0]["text"].split()) == 4

    config = tiny_config(model=str(config_only), load_format="dummy")
    with_server(serve, test, config=config)


def test_ranks_make_the_same_weights(config_only, ranks_as_threads):
    params = SamplingParams(max_tokens=6, temperature=0.0)
    alone, parallel = (
        LLM(config_only, load_format="dummy", tensor_parallel_size=size, **SETTINGS).generate([[7, 8, 9]], params)
        for size in (1, 2)
    )
    assert alone == parallel
