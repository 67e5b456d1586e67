import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.ablations.heavy_hitter import HeavyHitterAttention, scored
from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.core.ablations import Budget
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.errors import ConfigError, EngineBugError, RequestError
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, RELEASED, Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout
from bakeoff.reference_engine.kv_cache.quantised import store_maker
from bakeoff.reference_engine.kv_cache.storage import allocate_storage, token_bytes
from bakeoff.reference_engine.offline import generate
from tests.reference_engine.naive_attention import NaiveAttention

HEADS, KV_HEADS, DIM = 4, 2, 8
CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=30, temperature=0.0)
ALL = Budget(10_000, 0)


def storage(block_size, kind="auto", visible=EVERYTHING, layers=1):
    layout = CacheLayout((LayerLayout(KV_HEADS, DIM, DIM, visible),) * layers)
    return allocate_storage(
        layout, num_blocks=[200], block_size=block_size, dtype=torch.float32, device=CPU,
        make_store=scored(store_maker(kind)),
    )  # fmt: skip


def sequence(length, seed):
    torch.manual_seed(seed)
    return [2 * torch.randn(length, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]


def run(attention, tokens, cuts, table):
    """The sequence's output, computed in chunks that end at these places."""
    outputs = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens[0])], strict=True):
        if end > start:
            step = attention.begin_step([Span([table], start, end - start)])
            outputs.append(step.attend(0, *(part[start:end] for part in tokens)))
    return torch.cat(outputs)


def blocks_of(length, block_size, seed=0):
    order = torch.randperm(200, generator=torch.Generator().manual_seed(seed)).tolist()
    return order[: -(-length // block_size)]


def plain_twin(tokens, budget, block_size):
    """One token and one head at a time; what is kept is a set of positions."""
    query, keys, values = tokens
    length = len(query)
    kept = [set() for _ in range(KV_HEADS)]
    received = [[0.0] * length for _ in range(KV_HEADS)]
    outputs = torch.zeros(length, HEADS, DIM)
    for now in range(length):
        for head in range(KV_HEADS):
            if now % block_size == 0:
                latest = {at for at in kept[head] if at >= now - (budget.total - budget.heavy)}
                ranked = sorted(kept[head] - latest, key=lambda at: (-received[head][at], at))
                kept[head] = latest | set(ranked[: budget.heavy])
            kept[head].add(now)
            visible = sorted(kept[head])
            for query_head in range(HEADS // KV_HEADS * head, HEADS // KV_HEADS * (head + 1)):
                weights = (keys[visible, head] @ query[now, query_head] / DIM**0.5).softmax(dim=0)
                outputs[now, query_head] = weights @ values[visible, head]
                for at, weight in zip(visible, weights.tolist(), strict=True):
                    received[head][at] += weight
    return outputs.flatten(1), kept


@given(
    length=st.integers(1, 60),
    block_size=st.sampled_from([1, 2, 5, 16]),
    total=st.integers(1, 30),
    share=st.floats(0, 0.99),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    seed=st.integers(0, 1000),
)
def test_any_chunks_equal_the_plain_twin(length, block_size, total, share, cuts, seed):
    budget = Budget(total, int(total * share))
    tokens, table = sequence(length, seed), blocks_of(length, block_size)
    expected, kept = plain_twin(tokens, budget, block_size)
    store = storage(block_size)
    attention = HeavyHitterAttention(store, budget)
    outputs = run(attention, tokens, sorted(cut for cut in cuts if cut < length), table)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    scores = store.stores[0].scores[table].flatten(0, 1)[:length]
    assert [set((scores[:, head] >= 0).nonzero().flatten().tolist()) for head in range(KV_HEADS)] == kept


def test_a_sequence_decodes_the_same_alone_and_beside_others():
    budget, size = Budget(8, 4), 4
    first, second = sequence(30, 1), sequence(44, 2)
    tables = blocks_of(30, size), blocks_of(200, size)[20:40]
    alone = [run(HeavyHitterAttention(storage(size), budget), *arguments) for arguments in (
        (first, range(1, 30), tables[0]), (second, range(15, 44), tables[1])
    )]  # fmt: skip
    attention, together = HeavyHitterAttention(storage(size), budget), [[], []]
    attention.begin_step([Span([tables[1]], 0, 14)]).attend(0, *(part[:14] for part in second))
    for now in range(30):
        step = attention.begin_step([Span([tables[0]], now, 1), Span([tables[1]], now + 14, 1)])
        out = step.attend(0, *(torch.stack((a[now], b[now + 14])) for a, b in zip(first, second, strict=True)))
        together[0].append(out[0])
        together[1].append(out[1])
    torch.testing.assert_close(torch.stack(together[0]), alone[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.stack(together[1]), alone[1][14:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("visible", [EVERYTHING, Visible(9, 3)])
def test_a_budget_for_everything_is_the_naive_twin_windows_included(visible):
    tokens, table = sequence(70, 3), blocks_of(70, 4)
    cuts = [20, 21, 50]
    full = run(NaiveAttention(storage(4, visible=visible)), tokens, cuts, table)
    outputs = run(HeavyHitterAttention(storage(4, visible=visible), Budget(70, 30)), tokens, cuts, table)
    torch.testing.assert_close(outputs, full, atol=1e-5, rtol=1e-5)


def test_blocks_that_left_a_window_are_not_looked_at():
    visible, tokens, table = Visible(9), sequence(70, 3), blocks_of(70, 4)
    expected = run(HeavyHitterAttention(storage(4, visible=visible), ALL), tokens, range(1, 70), table)
    attention, outputs = HeavyHitterAttention(storage(4, visible=visible), ALL), []
    for now in range(70):
        for place in visible.out_of_window_blocks(now, 4):
            table[place] = RELEASED
        outputs.append(
            attention.begin_step([Span([table], now, 1)]).attend(0, *(part[now : now + 1] for part in tokens))
        )
    assert RELEASED in table
    assert torch.equal(torch.cat(outputs), expected)


def test_rounded_stores_can_be_thinned_out_too():
    tokens, table = sequence(40, 4), blocks_of(40, 4)
    exact = run(HeavyHitterAttention(storage(4), Budget(16, 8)), tokens, [], table)
    rounded = run(HeavyHitterAttention(storage(4, "int8"), Budget(16, 8)), tokens, [], table)
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, atol=0.2, rtol=0.2)


def test_the_census_counts_tokens_blocks_and_bytes():
    tokens, table = sequence(38, 5), blocks_of(38, 4)
    store = storage(4)
    attention = HeavyHitterAttention(store, Budget(6, 0))
    run(attention, tokens, [], table)
    census = attention.census([table], 38)
    # Six before the last boundary at 36, and the two behind it: blocks 7 (in part), 8 and 9 of 10.
    assert census.kept_share == 8 / 38
    assert census.dead_blocks == (7,)
    assert census.dead_in_layer_share == 0.7
    token_size = KV_HEADS * (2 * DIM * 4 + 4)
    assert token_bytes(store.layout, torch.float32, scored(store_maker("auto"))) == [token_size]
    assert (census.bytes, census.compact_bytes) == (40 * token_size, 8 * token_size)


def test_a_block_that_is_used_again_begins_with_nothing_dropped():
    budget, attention = Budget(4, 2), HeavyHitterAttention(storage(4), Budget(4, 2))
    table = blocks_of(40, 4)
    run(attention, sequence(40, 6), [], table)
    again = sequence(33, 7)
    expected, _ = plain_twin(again, budget, 4)
    torch.testing.assert_close(run(attention, again, [10], table[::-1]), expected, atol=1e-5, rtol=1e-5)


def test_stores_without_scores_are_refused():
    plain = allocate_storage(
        storage(4).layout, num_blocks=[4], block_size=4, dtype=torch.float32, device=CPU, make_store=store_maker("auto")
    )
    with pytest.raises(EngineBugError, match="need stores with scores, not PlainStore"):
        HeavyHitterAttention(plain, Budget(4, 2))


PROMPTS = [[5 + i, 9, 17, 200 - i, 31] * 9 for i in range(5)]


def engine_outputs(tiny_engine, **changes):
    settings = {"enable_prefix_caching": False, "block_size": 4, "max_num_batched_tokens": 16} | changes
    engine = tiny_engine(**settings)
    return generate(engine, PROMPTS, [GREEDY] * len(PROMPTS)), engine


def test_an_engine_with_a_budget_for_everything_answers_as_without_one(tiny_engine):
    everything, _ = engine_outputs(tiny_engine)
    assert engine_outputs(tiny_engine, ablation="heavy_hitter:256:100")[0] == everything
    assert engine_outputs(tiny_engine, ablation="heavy_hitter:16:8")[0] != everything


@pytest.mark.parametrize(
    ("changes", "ablation"),
    [
        ({"num_blocks": 60}, "heavy_hitter:24:12"),
        ({"num_blocks": 60, "preemption": "swap"}, "heavy_hitter:24:12"),
        ({"num_blocks": 200}, "heavy_hitter:24:12,static_batching"),
    ],
)
def test_neither_preemption_nor_batching_changes_what_is_dropped(tiny_engine, changes, ablation):
    budget = {"ablation": "heavy_hitter:24:12"}
    alone = [
        generate(tiny_engine(enable_prefix_caching=False, block_size=4, **budget), [prompt], [GREEDY])[0]
        for prompt in PROMPTS
    ]
    outputs, engine = engine_outputs(tiny_engine, ablation=ablation, **changes)
    assert outputs == alone
    assert bool(engine.preemptions) == (changes["num_blocks"] == 60)
    engine.check_integrity()


@pytest.mark.parametrize(
    ("ablation", "flag"),
    [("heavy_hitter:16:8", "--ablation heavy_hitter"), ("contiguous_cache", "--ablation contiguous_cache")],
)
def test_two_answers_to_one_prompt_are_refused_where_blocks_cannot_be_shared(tiny_engine, ablation, flag):
    engine = tiny_engine(enable_prefix_caching=False, ablation=ablation)
    with pytest.raises(RequestError, match=f"2 answers to one prompt share its blocks, which {flag} does not allow"):
        engine.add(Request("a", [5], GREEDY, siblings=[Request("b", [5], GREEDY)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ablation": "heavy_hitter:8:0", "enable_prefix_caching": True}, "add --no-enable-prefix-caching"),
        ({"ablation": "contiguous_cache", "enable_prefix_caching": True}, "add --no-enable-prefix-caching"),
        (
            {"ablation": "heavy_hitter:8:8"},
            "--ablation heavy_hitter:8:8 is not among these, each given once: static_batching, ",
        ),
        ({"ablation": "heavy_hitter:-1:0"}, "is not among"),
        ({"ablation": "heavy_hitter:8"}, "--ablation heavy_hitter:8 is not among"),
        ({"ablation": "heavy_hitter:8:x"}, "--ablation heavy_hitter:8:x is not among"),
        ({"ablation": "heavy_hitter:8.5:1"}, "--ablation heavy_hitter:8.5:1 is not among"),
        ({"ablation": "paging"}, "--ablation paging is not among"),
        ({"ablation": "static_batching:1"}, "--ablation static_batching:1 is not among"),
        ({"ablation": "slow:0.1,slow:0.2"}, "--ablation slow:0.2 is not among these, each given once"),
        ({"ablation": "slow:0.1,slow:x"}, "--ablation slow:x is not among these, each given once"),
        ({"ablation": "heavy_hitter:8:0", "attention_window": 8}, "both decide what stays in sight; drop one"),
        ({"ablation": "heavy_hitter:8:0", "batch_invariant": True}, "excludes --batch-invariant"),
        ({"ablation": "heavy_hitter:8:0", "speculation": "ngram:3"}, "excludes --speculation"),
        ({"ablation": "static_batching", "speculation": "ngram:3"}, "excludes --speculation"),
        ({"ablation": "contiguous_cache", "attention_window": 8}, "excludes --attention-window"),
        ({"attention_sinks": 4}, "--attention-sinks is for --attention-window"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tiny_config, changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(**({"enable_prefix_caching": False} | changes))
