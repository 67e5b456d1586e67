"""StreamingLLM's positions: first tokens are seen from right before the window, however long the text has become."""

import pytest
import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.safetensors import read_config
from bakeoff.reference_engine.offline import load_engine
from tests.reference_engine.models.tiny_families import answers, engine_config, make_family

WINDOW, SINKS = 20, 4
STREAMING = {"attention_window": WINDOW, "attention_sinks": SINKS, "ablation": "streaming_sinks", "max_model_len": 600}
PROMPT = [3 + (7 * i * i + 3 * i) % 250 for i in range(400)]  # longer than the 256 tokens that the model was made for


@pytest.fixture(scope="module")
def streamed(tmp_path_factory, save_checkpoint):
    directory, model = tmp_path_factory.mktemp("streamed"), make_family("llama")
    save_checkpoint(directory, model)
    return directory, model


@torch.inference_mode()
def greedy_over_a_rolling_cache(model, prompt, length):
    """Transformers' layers over the keys, not rotated, of sinks and window, which get positions from 0 at each token.

    The paper's own description, one token at a time.
    """
    base, config = model.model, model.config
    caches = [([], []) for _ in base.layers]
    tokens, token = [], prompt[0]
    for number in range(len(prompt) + length - 1):
        hidden = base.embed_tokens(torch.tensor([[token]]))
        for layer, (keys, values) in zip(base.layers, caches, strict=True):
            attention, normed = layer.self_attn, layer.input_layernorm(hidden)
            heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, attention.head_dim
            keys.append(attention.k_proj(normed).view(kv_heads, dim))
            values.append(attention.v_proj(normed).view(kv_heads, dim))
            if len(keys) > SINKS + WINDOW:
                del keys[SINKS], values[SINKS]
            stacked = torch.stack(keys, dim=1)  # [kv_heads, seen, dim]
            cos, sin = base.rotary_emb(stacked, torch.arange(len(keys))[None])
            turned = rotate(stacked, cos[0], sin[0])
            query = rotate(attention.q_proj(normed).view(heads, 1, dim), cos[0, -1:], sin[0, -1:])
            group = heads // kv_heads
            weights = (query @ turned.repeat_interleave(group, 0).transpose(1, 2) / dim**0.5).softmax(-1)
            mixed = weights @ torch.stack(values, dim=1).repeat_interleave(group, 0)
            hidden = hidden + attention.o_proj(mixed.reshape(1, 1, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        if number + 1 < len(prompt):
            token = prompt[number + 1]
        else:
            token = int(model.lm_head(base.norm(hidden))[0, -1].argmax())
            tokens.append(token)
    return tokens


def rotate(heads, cos, sin):
    left, right = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-right, left), dim=-1) * sin


@pytest.mark.parametrize("size", [16, 3])
@pytest.mark.parametrize("budget", [64, 7])
def test_tokens_equal_those_of_a_cache_that_gives_positions_anew(streamed, size, budget):
    directory, model = streamed
    expected = greedy_over_a_rolling_cache(model, PROMPT, 12)
    settings = STREAMING | {"block_size": size, "max_num_batched_tokens": budget, "max_num_seqs": 4}
    engine = load_engine(engine_config(directory, **settings))
    assert answers(engine, [PROMPT], 12)[0] == [expected]
    outputs, counts = answers(engine, [PROMPT], 12)
    assert outputs == [expected]
    assert counts["cached_tokens"] >= len(PROMPT) - size  # keys do not depend on where the text has got to


def test_up_to_the_window_nothing_changes(streamed):
    plain, streaming = (
        answers(load_engine(engine_config(streamed[0], **settings)), [PROMPT[: WINDOW - 8]], 6)[0]
        for settings in ({}, STREAMING)
    )
    assert plain == streaming


def test_the_cache_of_a_long_text_is_no_larger_than_its_window(streamed):
    settings = STREAMING | {"block_size": 4, "max_num_batched_tokens": 8, "num_blocks": 12}
    assert len(answers(load_engine(engine_config(streamed[0], **settings)), [PROMPT], 12)[0][0]) == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_sinks": 0}, "--ablation streaming_sinks is for --attention-sinks"),
        ({"attention_window": 300}, "more than the 256 tokens the model was made for"),
    ],
)
def test_what_cannot_be_streamed_is_refused(streamed, changes, message):
    with pytest.raises(ConfigError, match=message):
        resolve_config(EngineConfig(model=str(streamed[0]), **STREAMING | changes), read_config(streamed[0]))


@pytest.mark.parametrize("name", ["deepseek_v2", "phi3, long factors"])
def test_models_whose_keys_cannot_be_seen_from_elsewhere_are_refused(name, tmp_path, save_checkpoint):
    save_checkpoint(tmp_path, make_family(name))
    with pytest.raises(ConfigError, match="--ablation streaming_sinks is not for"):
        resolve_config(EngineConfig(model=str(tmp_path), **STREAMING), read_config(tmp_path))
