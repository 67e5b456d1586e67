"""Processes with the whole model each, which share out the tokens of long steps; they are threads here."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.shared_step import TokenShare
from bakeoff.reference_engine.core.ranks import Alone
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.models import execution
from bakeoff.reference_engine.offline import generate, load_engine
from tests.reference_engine.models.tiny_families import make_family

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PROMPTS = [[5], [*range(3, 43)], [9, 8, 7, 6], [*range(50, 81)]]


def outputs_of(engine, prompts=PROMPTS):
    try:
        return generate(engine, prompts, [GREEDY] * len(prompts))
    finally:
        engine.close()


class Context(Alone):
    """One of several; `gathered` are the padded rows of all."""

    def __init__(self, context, contexts, gathered=()):
        self.context, self.contexts, self.gathered = context, contexts, gathered

    def gather_rows(self, rows):
        return torch.cat([*self.gathered])


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=6))
def test_shares_are_the_whole_and_come_back_in_order(contexts, places):
    spans = [Span([[number]], start, length) for number, (start, length) in enumerate(places)]
    total = sum(length for _, length in places)
    shares = [TokenShare(spans, Context(context, contexts)) for context in range(contexts)]
    assert sorted(row for share in shares for row in share.rows) == list(range(total))
    assert max(len(share.rows) for share in shares) <= 2 * -(-total // (2 * contexts))
    expected = [(span.tables[0][0], span.start + i) for span in spans for i in range(span.length)]
    for share in shares:
        own = [(span.tables[0][0], span.start + i) for span in share.spans for i in range(span.length)]
        assert own == [expected[row] for row in share.rows]
    width = 2 * -(-total // (2 * contexts))
    padded = [torch.tensor([*share.rows, *[-1] * (width - len(share.rows))]) for share in shares]
    whole = TokenShare(spans, Context(0, contexts, padded)).gather(padded[0][: len(shares[0].rows)])
    assert whole.tolist() == list(range(total))


@pytest.mark.parametrize(
    ("family", "contexts", "settings"),
    [
        ("llama", 2, {}),
        ("llama", 3, {"kv_cache_dtype": "int8"}),
        ("qwen2", 2, {"max_num_batched_tokens": 24}),
        ("gemma3", 2, {"max_num_batched_tokens": 16}),
        ("deepseek_v2", 2, {}),
        ("mixtral", 2, {"attention_window": 16, "attention_sinks": 2}),
    ],
)
def test_shared_steps_give_the_tokens_of_one_process(
    tmp_path, save_checkpoint, tiny_config, ranks_as_threads, monkeypatch, family, contexts, settings
):
    """Prompts in pieces behind their past, and beside decodes."""
    monkeypatch.setattr(execution, "_LEAST_SHARE", 4)
    path, shared = str(save_checkpoint(tmp_path, make_family(family))), Counter()
    hidden = execution.LocalExecutor._shared_hidden

    def counted(self, batch):
        shared[any(span.start for span in batch.spans)] += 1
        return hidden(self, batch)

    monkeypatch.setattr(execution.LocalExecutor, "_shared_hidden", counted)
    engine = load_engine(tiny_config(model=path, context_parallel_size=contexts, **settings))
    assert outputs_of(engine) == outputs_of(load_engine(tiny_config(model=path, **settings)))
    assert shared[True] or "max_num_batched_tokens" not in settings
    assert shared[True] + shared[False] > 0


def test_what_parts_the_model_or_needs_all_tokens_is_refused(tiny_config):
    with pytest.raises(ConfigError, match=r"--context-parallel-size gives each process the whole model.*; choose one"):
        tiny_config(context_parallel_size=2, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match=r"heavy_hitter excludes --context-parallel-size: .*; drop one"):
        tiny_config(context_parallel_size=2, ablation="heavy_hitter:8:0", enable_prefix_caching=False)
