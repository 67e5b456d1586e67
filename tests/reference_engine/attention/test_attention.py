import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.attention.base import Span, slot_mapping
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.kernels.scoring import Scoring
from bakeoff.reference_engine.kv_cache.block_table import RELEASED, Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from tests.reference_engine.naive_attention import NaiveAttention

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 8, 4


EVERYTHING = Visible()


def storage(blocks=400, dtype=torch.float32, visible=EVERYTHING):
    layout = CacheLayout((LayerLayout(KV_HEADS, HEAD_DIM, HEAD_DIM, visible),) * 2)
    return allocate_storage(layout, num_blocks=[blocks], block_size=BLOCK, dtype=dtype, device=torch.device("cpu"))


def parts_of(store):
    return [part for layer in store.stores for part in layer.parts]


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


def outputs_of(spans, dtype=torch.float32, seed=0, visible=EVERYTHING):
    """Outputs of the fast backend and of the naive twin, for the same step after the same history."""
    torch.manual_seed(seed)
    fast_store, naive_store = storage(dtype=dtype, visible=visible), storage(dtype=dtype, visible=visible)
    for fast, naive in zip(parts_of(fast_store), parts_of(naive_store), strict=True):
        fast.copy_(torch.randn(fast.shape))
        naive.copy_(fast)
    tokens = random_tokens(sum(span.length for span in spans), dtype)
    fast = TorchAttention(fast_store).begin_step(spans).attend(1, *tokens)
    naive = NaiveAttention(naive_store).begin_step(spans).attend(1, *tokens)
    for part, naive_part in zip(parts_of(fast_store), parts_of(naive_store), strict=True):
        assert torch.equal(part, naive_part)
    return fast, naive


def test_slots_follow_the_block_list():
    assert slot_mapping([Span([[7, 2]], 3, 3), Span([[5]], 0, 1)], BLOCK) == [31, 8, 9, 20]


@given(
    shape=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_any_mix_of_chunks_and_decodes_equals_the_naive_twin(shape, seed):
    torch.manual_seed(seed)
    blocks = spread_blocks([start + length for start, length in shape])
    spans = [Span([held], start, length) for held, (start, length) in zip(blocks, shape, strict=True)]
    fast, naive = outputs_of(spans, seed=seed)
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [127, 128, 129, 300])
def test_long_chunks_are_tiled_without_a_seam(length):
    (blocks,) = spread_blocks([length + 5])
    fast, naive = outputs_of([Span([blocks], 5, length)])
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=1e-5)


def test_decodes_of_very_different_length_do_not_share_a_padded_batch():
    ends = [2, 3, 200, 210]
    spans = [Span([held], end - 1, 1) for held, end in zip(spread_blocks(ends), ends, strict=True)]
    step = TorchAttention(storage()).begin_step(spans)
    assert [batch.rows for batch in step._groups[0].batches] == [slice(0, 2), slice(2, 4)]
    fast, naive = outputs_of(spans)
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=1e-5)


def test_bf16_stays_close_to_the_float32_twin():
    spans = [Span([held], 20, 1) for held in spread_blocks([21, 21])] + [Span(spread_blocks([30]), 10, 20)]
    fast, naive = outputs_of(spans, dtype=torch.bfloat16)
    torch.testing.assert_close(fast.float(), naive.float(), atol=0.03, rtol=0.03)


def test_storage_has_the_documented_shape_and_starts_at_zero():
    parts = parts_of(storage(blocks=3))
    assert [part.shape for part in parts] == [(3 + 1, BLOCK, KV_HEADS, HEAD_DIM)] * 4  # and one block for padding
    assert not any(tensor.any() for tensor in parts)


@given(
    shape=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=6),
    window=st.integers(1, 40),
    sinks=st.integers(0, 9),
    seed=st.integers(0, 100),
)
def test_windows_and_sinks_equal_the_naive_twin_without_the_blocks_that_were_given_back(shape, window, sinks, seed):
    torch.manual_seed(seed)
    visible = Visible(window, sinks)
    spans = []
    for held, (start, length) in zip(spread_blocks([start + length for start, length in shape]), shape, strict=True):
        for index in visible.out_of_window_blocks(start, BLOCK):
            held[index] = RELEASED
        spans.append(Span([held], start, length))
    fast, naive = outputs_of(spans, seed=seed, visible=visible)
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=1e-5)


@given(shape=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=4))
def test_values_inside_keys_and_shared_layers_equal_the_naive_twin(shape):
    """A latent cache: one head, whose value is the beginning of its key; the second layer reads the first one's."""
    latent = LayerLayout(1, HEAD_DIM, 5, value_in_key=True)
    layout = CacheLayout((latent, LayerLayout(1, HEAD_DIM, 5, value_in_key=True, shares=0)))
    blocks = spread_blocks([start + length for start, length in shape])
    spans = [Span([held], start, length) for held, (start, length) in zip(blocks, shape, strict=True)]
    query, key, _ = random_tokens(sum(span.length for span in spans))
    outputs = []
    for backend in (TorchAttention, NaiveAttention):
        store = allocate_storage(layout, num_blocks=[400], block_size=BLOCK, dtype=torch.float32, device=key.device)
        assert len(store.stores[0].parts) == 1
        assert store.bytes == store.stores[0].parts[0].nbytes
        step = backend(store).begin_step(spans)
        scoring = Scoring(0.2)
        outputs.append([step.attend(0, query, key[:, :1], None, scoring), step.attend(1, query, None, None, scoring)])
    for actual, expected in zip(*outputs, strict=True):
        assert actual.shape == (query.shape[0], HEADS * 5)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
