import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.attention.base import Span, slot_mapping
from reference_engine.attention.naive import NaiveAttention
from reference_engine.attention.torch_backend import TorchAttention
from reference_engine.kv_cache.storage import allocate_storage
from reference_engine.models.config import ModelConfig

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 8, 4


def model_config():
    return ModelConfig(
        vocab_size=10,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
    )


def storage(blocks=400, dtype=torch.float32):
    return allocate_storage(
        model_config(), num_blocks=blocks, block_size=BLOCK, dtype=dtype, device=torch.device("cpu")
    )


def random_tokens(count, dtype=torch.float32):
    return (
        torch.randn(count, HEADS, HEAD_DIM).to(dtype),
        torch.randn(count, KV_HEADS, HEAD_DIM).to(dtype),
        torch.randn(count, KV_HEADS, HEAD_DIM).to(dtype),
    )


def spread_blocks(lengths):
    """Block lists for sequences of these lengths, interleaved and out of order so that nothing is contiguous."""
    order = torch.randperm(400).tolist()
    needed = [-(-length // BLOCK) for length in lengths]
    return [[order.pop() for _ in range(count)] for count in needed]


def both(spans, dtype=torch.float32, seed=0):
    """The same history and the same step through the fast backend and the naive twin."""
    torch.manual_seed(seed)
    fast_store, naive_store = storage(dtype=dtype), storage(dtype=dtype)
    for fast, naive in zip(fast_store.keys + fast_store.values, naive_store.keys + naive_store.values, strict=True):
        fast.copy_(torch.randn(fast.shape))
        naive.copy_(fast)
    tokens = random_tokens(sum(span.length for span in spans), dtype)
    fast = TorchAttention(fast_store).begin_step(spans).attend(1, *tokens)
    naive = NaiveAttention(naive_store).begin_step(spans).attend(1, *tokens)
    for ours, theirs in zip(fast_store.keys + fast_store.values, naive_store.keys + naive_store.values, strict=True):
        assert torch.equal(ours, theirs)
    return fast, naive


def test_slots_follow_the_block_list():
    assert slot_mapping([Span([7, 2], 3, 3), Span([5], 0, 1)], BLOCK) == [31, 8, 9, 20]


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_any_mix_of_chunks_and_decodes_equals_the_naive_twin(shape, seed):
    torch.manual_seed(seed)
    blocks = spread_blocks([start + length for start, length in shape])
    spans = [Span(held, start, length) for held, (start, length) in zip(blocks, shape, strict=True)]
    fast, naive = both(spans, seed=seed)
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [127, 128, 129, 300])
def test_long_chunks_are_tiled_without_a_seam(length):
    (blocks,) = spread_blocks([length + 5])
    fast, naive = both([Span(blocks, 5, length)])
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=1e-5)


def test_decodes_of_very_different_length_do_not_share_a_padded_batch():
    ends = [2, 3, 200, 210]
    spans = [Span(held, end - 1, 1) for held, end in zip(spread_blocks(ends), ends, strict=True)]
    step = TorchAttention(storage()).begin_step(spans)
    assert [group.rows for group in step._groups] == [slice(0, 2), slice(2, 4)]
    fast, naive = both(spans)
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=1e-5)


def test_bf16_stays_close_to_the_float32_twin():
    spans = [Span(held, 20, 1) for held in spread_blocks([21, 21])] + [Span(spread_blocks([30])[0], 10, 20)]
    fast, naive = both(spans, dtype=torch.bfloat16)
    torch.testing.assert_close(fast.float(), naive.float(), atol=0.03, rtol=0.03)


def test_storage_has_the_documented_shape_and_starts_at_zero():
    store = storage(blocks=3)
    assert len(store.keys) == len(store.values) == 2
    assert store.keys[0].shape == (3, BLOCK, KV_HEADS, HEAD_DIM)
    assert not any(tensor.any() for tensor in store.keys + store.values)
