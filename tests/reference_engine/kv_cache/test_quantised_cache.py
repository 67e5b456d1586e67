import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.reference_engine.attention import make_attention
from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout, row_bytes, windowed
from bakeoff.reference_engine.kv_cache.quantised import Fp8, Int4, Int8, store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage, token_bytes
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.offline import generate
from tests.reference_engine.naive_attention import NaiveAttention

KINDS = ["int8", "fp8", "int4"]
CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
SCALE_ROUNDING = 1.01  # a scale is rounded up by at most 1/128


def random_rows(dim, seed, size, outlier, dtype=torch.float32):
    """Rows of one magnitude with one channel that is larger."""
    rows = torch.randn(20, 3, dim, generator=torch.Generator().manual_seed(seed)) * 10.0**size
    rows[..., seed % dim] *= outlier
    return rows.to(dtype)


def storage(kind, layout, blocks=100, block_size=4, dtype=torch.float32):
    return allocate_storage(
        layout, num_blocks=[blocks] * len(layout.groups), block_size=block_size, dtype=dtype, device=CPU,
        make_store=store_maker(kind),
    )  # fmt: skip


def bytes_per_element(kind, dim, **layer):
    layout = LayerLayout(3, dim, dim, **layer)
    return token_bytes(CacheLayout((layout,)), torch.bfloat16, store_maker(kind))[0] / layout.elements_per_token


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [32, 64, 80, 128, 576])
def test_costs_count_the_bytes_that_a_row_takes(kind, dim):
    assert bytes_per_element(kind, dim) * dim == row_bytes(kind, dim)


@given(
    half=st.integers(1, 100), seed=st.integers(0, 99), size=st.integers(-20, 20), outlier=st.sampled_from([1, 50, 1e4])
)
def test_int8_is_off_by_half_a_step(half, seed, size, outlier):
    rows = random_rows(2 * half, seed, size, outlier)
    step = rows.abs().amax(dim=-1, keepdim=True) / 127
    assert ((Int8().decode(Int8().encode(rows), torch.float32) - rows).abs() <= step / 2 * SCALE_ROUNDING).all()


@given(
    half=st.integers(1, 100), seed=st.integers(0, 99), size=st.integers(-20, 20), outlier=st.sampled_from([1, 50, 1e4])
)
def test_fp8_is_off_by_a_sixteenth_or_by_its_smallest_step(half, seed, size, outlier):
    rows = random_rows(2 * half, seed, size, outlier)
    smallest = rows.abs().amax(dim=-1, keepdim=True) / 448 / 512
    error = (Fp8().decode(Fp8().encode(rows), torch.float32) - rows).abs()
    assert (error <= torch.maximum(rows.abs() / 16, smallest / 2) * SCALE_ROUNDING).all()


@given(
    half=st.integers(1, 100), seed=st.integers(0, 99), size=st.integers(-20, 20), outlier=st.sampled_from([1, 50, 1e4])
)
def test_int4_is_off_by_half_a_step_of_its_group(half, seed, size, outlier):
    rows = random_rows(2 * half, seed, size, outlier)
    error = (Int4().decode(Int4().encode(rows), torch.float32) - rows).abs()
    groups = -(-rows.shape[-1] // 32)
    width = -(-rows.shape[-1] // groups)
    for some, errors in zip(rows.split(width, dim=-1), error.split(width, dim=-1), strict=True):
        low, high = some.aminmax(dim=-1, keepdim=True)
        step = (high - low + low.abs() / 128) / 15
        assert (errors <= step / 2 * SCALE_ROUNDING).all()


@pytest.mark.parametrize("codec", [Int8(), Fp8(), Int4()])
def test_zeros_stay_zeros_and_the_largest_of_a_row_is_not_clipped(codec):
    rows = torch.zeros(2, 1, 64)
    rows[1, 0, 3], rows[1, 0, 5] = 1000.0, -900.0
    back = codec.decode(codec.encode(rows), torch.float32)
    assert not back[0].any()
    assert abs(float(back[1, 0, 3]) - 1000) < 8
    assert abs(float(back[1, 0, 5]) + 900) < 80


@pytest.mark.parametrize("kind", KINDS)
def test_an_outlier_in_one_head_or_token_leaves_the_others_alone(kind):
    layout = CacheLayout((LayerLayout(2, 64, 64),))
    calm, wild = storage(kind, layout), storage(kind, layout)
    keys, values = torch.randn(4, 2, 64), torch.randn(4, 2, 64)
    calm.stores[0].write(torch.arange(4), keys, values)
    keys[1, 1] *= 1e4
    wild.stores[0].write(torch.arange(4), keys, values)
    before, after = (storage.stores[0].read(torch.tensor([0]))[0] for storage in (calm, wild))
    assert not torch.equal(before[1, 1], after[1, 1])
    after[1, 1] = before[1, 1]
    assert torch.equal(before, after)


def test_bytes_per_element_are_as_documented():
    assert bytes_per_element("auto", 64) == 2
    assert bytes_per_element("int8", 64) == bytes_per_element("fp8", 64) == 66 / 64
    assert bytes_per_element("int4", 64) == 40 / 64
    assert bytes_per_element("int8", 128) == 130 / 128
    assert bytes_per_element("int4", 80) == (40 + 3 * 4) / 80
    latent = CacheLayout((LayerLayout(1, 576, 512, value_in_key=True),) * 2)
    assert token_bytes(latent, torch.bfloat16, store_maker("int8")) == [2 * 578]
    shared = CacheLayout((LayerLayout(1, 64, 64), LayerLayout(1, 64, 64, shares=0)))
    assert token_bytes(shared, torch.bfloat16, store_maker("int8")) == [132]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_the_storage_are_those_that_were_counted_on(kind):
    layout = CacheLayout((LayerLayout(2, 16, 16), LayerLayout(2, 16, 16, Visible(8))))
    store = storage(kind, layout, blocks=9, block_size=4)
    assert store.bytes == 10 * 4 * sum(token_bytes(layout, torch.float32, store_maker(kind)))


@settings(max_examples=15)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=5),
    is_latent=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_attention_equals_the_naive_twin_on_the_same_rounded_cache(kind, shape, is_latent, dtype, seed):
    torch.manual_seed(seed)
    layer = LayerLayout(1, 12, 10, value_in_key=True) if is_latent else LayerLayout(2, 12, 10)
    order = torch.randperm(100).tolist()
    spans = [Span([[order.pop() for _ in range(-(-(a + b) // 4))]], a, b) for a, b in shape]
    count = sum(span.length for span in spans)
    tokens = [torch.randn(count, heads, dim).to(dtype) for heads, dim in ((4, 12), (layer.num_kv_heads, 12))]
    tokens.append(None if is_latent else torch.randn(count, layer.num_kv_heads, 10).to(dtype))
    history = [torch.randn(400, layer.num_kv_heads, dim).to(dtype) for dim in (12, 10)]
    outputs = []
    for backend in (make_attention, NaiveAttention):
        store = storage(kind, CacheLayout((layer,)), dtype=dtype)
        store.stores[0].write(torch.arange(400), history[0], None if is_latent else history[1])
        attention = backend(store)
        outputs.append(attention.begin_step(spans).attend(0, *tokens).float())
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(*outputs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_swaps_keep_codes_and_scales(kind):
    layout = CacheLayout((LayerLayout(2, 64, 64),))
    device, host = storage(kind, layout), storage(kind, layout)
    device.stores[0].write(torch.arange(8), torch.randn(8, 2, 64), torch.randn(8, 2, 64))
    wanted = [part.clone() for part in device.stores[0].read(torch.tensor([0, 1]))]
    copies = BlockCopies()
    copies.to_host += [(0, 0, 7), (0, 1, 5)]
    device.copy_blocks(copies, host)
    copies = BlockCopies()
    copies.to_device += [(0, 7, 30), (0, 5, 31)]
    copies.within += [(0, 30, 40), (0, 31, 41)]
    device.copy_blocks(copies, host)
    for place in ([30, 31], [40, 41]):
        for copied, part in zip(device.stores[0].read(torch.tensor(place)), wanted, strict=True):
            assert torch.equal(copied, part)


@pytest.mark.parametrize("kind", KINDS)
def test_siblings_and_swapped_requests_answer_as_each_alone(tiny_engine, kind):
    """Rounding is the same wherever a token is computed, so nothing may differ by more than the order of sums."""
    prompts = [[5 + i, 9, 17, 200 - i, 31] * 3 for i in range(5)]
    alone = [generate(tiny_engine(kv_cache_dtype=kind), [prompt], [GREEDY])[0] for prompt in prompts]
    for changes in ({"preemption": "swap", "num_blocks": 9}, {"num_blocks": 9}):
        engine = tiny_engine(kv_cache_dtype=kind, max_num_batched_tokens=12, **changes)
        for number, prompt in enumerate(prompts):
            engine.add(Request(f"{number}", prompt, GREEDY, siblings=[Request(f"{number}/1", prompt, GREEDY)]))
        outputs, swaps = {}, 0
        while engine.has_work:
            report = engine.step()
            swaps += report.swaps
            engine.check_integrity()
            for output in report.outputs:
                outputs.setdefault(output.request_id, []).append(output.token.token_id)
        assert engine.preemptions
        assert bool(swaps) == ("preemption" in changes)
        for number, expected in enumerate(alone):
            assert outputs[f"{number}"] == outputs[f"{number}/1"] == expected


def test_the_same_bytes_hold_about_twice_the_blocks(tiny_config, checkpoint_dir):
    model = dataclasses.replace(open_checkpoint(checkpoint_dir).config, head_dim=64)
    budget = 10 * 16 * 2 * 2 * 2 * 64 * 2
    blocks = {
        kind: resolve_config(
            tiny_config(num_blocks=None, kv_cache_memory_bytes=budget, kv_cache_dtype=kind, dtype="bfloat16"), model
        ).num_blocks
        for kind in ("auto", *KINDS)
    }
    assert blocks == {"auto": 10, "int8": 19, "fp8": 19, "int4": 32}


def test_a_window_over_all_layers_leaves_smaller_ones_alone():
    layers = [LayerLayout(1, 8, 8), LayerLayout(1, 8, 8, Visible(4)), LayerLayout(1, 8, 8, Visible(99))]
    visible = [layer.visible for layer in windowed(CacheLayout(tuple(layers)), 16, 2).layers]
    assert visible == [Visible(16, 2), Visible(4), Visible(16, 2)]


def test_a_window_with_sinks_answers_as_a_masked_model_and_frees_blocks(tiny_engine, hf_model):
    prompt, window, sinks = [5, 9, 17, 200, 31, 8] * 8, 20, 4
    engine = tiny_engine(attention_window=window, attention_sinks=sinks, block_size=4, max_num_batched_tokens=8)
    engine.add(Request("a", prompt, GREEDY))
    tokens, used = list(prompt), 0
    while engine.has_work:
        report = engine.step()
        used = max(used, report.used_blocks)
        tokens += [output.token.token_id for output in report.outputs]
    assert used <= (window + sinks + 8) // 4 + 2
    length = len(tokens) - 1
    query, key = torch.arange(length)[:, None], torch.arange(length)
    visible = (key <= query) & ((key > query - window) | (key < sinks))
    mask = torch.zeros(length, length).masked_fill(~visible, float("-inf"))
    with torch.inference_mode():
        logits = hf_model(input_ids=torch.tensor([tokens[:-1]]), attention_mask=mask[None, None]).logits[0]
    best = logits[len(prompt) - 1 :].topk(2)
    for token, ids, values in zip(tokens[len(prompt) :], best.indices.tolist(), best.values, strict=True):
        assert token == ids[0] or float(values[0] - values[1]) < 1e-4


def test_rounded_stores_are_read_by_the_torch_backend():
    assert isinstance(make_attention(storage("int8", CacheLayout((LayerLayout(2, 8, 8),)))), TorchAttention)
