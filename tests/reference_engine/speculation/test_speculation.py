"""Drafts change when tokens come, never which."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.core.request import Request, SamplingParams, Watermark
from bakeoff.reference_engine.core.speculation_settings import Speculation
from bakeoff.reference_engine.engine import runner
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.offline import LLM, load_engine
from bakeoff.reference_engine.speculation.draft_lengths import DraftLengths, Offer, StepCosts
from bakeoff.reference_engine.speculation.ngram import NgramDrafter
from bakeoff.reference_engine.speculation.suffix_automaton import SuffixAutomaton
from bakeoff.reference_engine.speculation.verification import split
from tests.reference_engine.conftest import make_hf_model, write_checkpoint
from tests.reference_engine.server_calls import TEXT, with_server
from tests.selection import sampled

CHOICES = r"(ab|cd|ef){3,9}"
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.3, "seed": 2, "top_k": 20},
    {"temperature": 0.5, "seed": 3, "top_p": 0.8},
    {"temperature": 0.4, "seed": 4, "min_p": 0.1},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 0.5, "seed": 5, "presence_penalty": 0.5, "logprobs": 0},
    {"temperature": 0.7, "seed": 6, "min_tokens": 9, "stop_token_ids": frozenset(range(3, 90))},
    {"temperature": 0.0, "stop_token_ids": frozenset(range(3, 40))},
    {"temperature": 0.9, "seed": 7, "logit_bias": {5: 3.0, 6: 3.0}},
    {"temperature": 0.6, "seed": 9, "watermark": Watermark(delta=3.0)},
]
PROMPTS = [[5 + (place * (number + 2)) % 11 for place in range(9 + number)] for number in range(len(SAMPLING))]
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def drafting_dir(tmp_path_factory):
    """A model that mostly predicts what the tiny one does."""
    model = make_hf_model()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    return write_checkpoint(tmp_path_factory.mktemp("drafting"), model)


@pytest.fixture
def spelled(checkpoint_dir, drafting_dir):
    """`--speculation` of a short name."""
    models = {"same": checkpoint_dir, "near": drafting_dir}

    def spell(text):
        name, _, tokens = text.partition(":")
        return f"draft:{tokens}:{models[name]}" if name in models else text

    return spell


def answers(engine, sampling=SAMPLING, prompts=PROMPTS, n=1):
    """Tokens of each request; and the drafts, those that were right, preemptions and swaps."""
    grammar = engine.grammars.of_regex(CHOICES)
    all_params = [SamplingParams(max_tokens=NUM_TOKENS, **params) for params in sampling]
    bound = {"grammar": grammar, "stop_token_ids": frozenset({0, 2})}
    all_params.append(SamplingParams(max_tokens=NUM_TOKENS, temperature=0.9, seed=8, **bound))
    requests = [
        Request(str(number), prompt, params, siblings=[Request(f"{number}/{i}", prompt, params) for i in range(1, n)])
        for number, (prompt, params) in enumerate(zip([*prompts, prompts[0]], all_params, strict=True))
    ]
    counts = Counter()
    for request in requests:
        engine.add(request)
    tokens = {member.request_id: [] for request in requests for member in (request, *request.siblings)}
    while engine.has_work:
        report = engine.step()
        for output in report.outputs:
            likeliest = [token for token, _ in output.token.alternatives[:1]]
            tokens[output.request_id].append((output.token.token_id, output.finish_reason, likeliest))
        counts.update(drafted=sum(report.drafted), accepted=sum(report.accepted), swaps=report.swaps)
        counts["preemptions"] += report.preemptions
        engine.core.check_integrity()
    return list(tokens.values()), counts


CASES = {
    "room for all": {},
    "preempted": {"num_blocks": 24, "block_size": 4, "max_num_seqs": 16},
    "swapped": {"num_blocks": 24, "block_size": 4, "max_num_seqs": 16, "preemption": "swap"},
    "cut prompts": {"max_num_batched_tokens": 9, "max_num_seqs": 5},
    "small blocks": {"block_size": 3, "num_blocks": 300},
}


PAIRS = [(method, case) for method in ("ngram:3", "near:3", "early_exit:3:1") for case in CASES]
PAIRS += [(method, "room for all") for method in ("ngram:1", "near:1", "same:4")]
PAIRS += [(method, "preempted") for method in ("ngram:8", "near:8")]


@pytest.mark.parametrize(("method", "case"), sampled(PAIRS, PAIRS[::3]))
def test_answers_are_those_without_drafts(tiny_engine, spelled, method, case):
    expected, _ = answers(tiny_engine(**CASES[case]))
    tokens, counts = answers(tiny_engine(**CASES[case], speculation=spelled(method), adaptive_speculation=False))
    assert tokens == expected
    assert 0 < counts["accepted"] <= counts["drafted"]
    if case in {"preempted", "swapped"}:
        assert counts["preemptions"] > 0
        assert (counts["swaps"] > 0) is (case == "swapped")


@pytest.mark.parametrize("method", ["ngram:4", "near:4", "early_exit:4:1"])
def test_siblings_go_on_with_drafts_of_their_own(tiny_engine, spelled, method):
    expected, _ = answers(tiny_engine(num_blocks=200, max_num_seqs=64), n=3)
    engine = tiny_engine(num_blocks=200, max_num_seqs=64, speculation=spelled(method), adaptive_speculation=False)
    tokens, counts = answers(engine, n=3)
    assert tokens == expected
    assert counts["accepted"] > 0


def test_a_draft_model_that_is_the_model_is_right_wherever_nothing_else_counts(tiny_engine, spelled):
    bound = {"min_tokens", "logit_bias", "presence_penalty", "repetition_penalty", "stop_token_ids", "watermark"}
    free = [params for params in SAMPLING if not params.keys() & bound]
    engine = tiny_engine(speculation=spelled("same:3"), adaptive_speculation=False)
    requests = [
        Request(str(number), prompt, SamplingParams(max_tokens=NUM_TOKENS, **params))
        for number, (prompt, params) in enumerate(zip(PROMPTS, free, strict=False))
    ]
    for request in requests:
        engine.add(request)
    drafted, accepted = Counter(), Counter()
    while engine.has_work:
        report = engine.step()
        drafted.update(dict(enumerate(report.drafted)))
        accepted.update(dict(enumerate(report.accepted)))
    assert accepted == drafted
    assert drafted[0] > drafted[2] > 0  # the last drafts of an answer are fewer


@pytest.mark.parametrize("method", ["ngram:5", "early_exit:5:1"])
@pytest.mark.parametrize("sinks", [0, 2])
def test_windows_release_blocks_behind_verified_tokens_only(tiny_engine, method, sinks):
    window = {"attention_window": 12, "attention_sinks": sinks, "block_size": 4, "enable_prefix_caching": False}
    expected, _ = answers(tiny_engine(**window))
    tokens, counts = answers(tiny_engine(**window, speculation=method, adaptive_speculation=False))
    assert tokens == expected
    assert counts["accepted"] > 0


@pytest.mark.parametrize("method", ["ngram:4", "near:4", "early_exit:4:1"])
def test_prompts_found_in_the_cache_are_continued_alike(tiny_engine, spelled, method):
    engine = tiny_engine(num_blocks=200, block_size=4, speculation=spelled(method), adaptive_speculation=False)
    first, _ = answers(engine)
    again, counts = answers(engine)
    assert first == again
    assert counts["accepted"] > 0


def test_adaptive_lengths_change_no_token(tiny_engine, spelled):
    expected, _ = answers(tiny_engine())
    for method in ("ngram:6", "near:6"):
        assert answers(tiny_engine(speculation=spelled(method)))[0] == expected


@pytest.mark.parametrize("broken", ["accepts all", "never compares"])
def test_a_verification_that_is_wrong_is_found_out(tiny_engine, spelled, monkeypatch, broken):
    """The comparison above can fail."""
    greedy = SAMPLING[:1] * len(PROMPTS)
    expected, _ = answers(tiny_engine(), greedy)
    right = runner.accepted

    def accepted(tokens, drafts):
        if broken == "accepts all":
            guessed = iter(right(tokens, [()] * len(tokens)))
            return [tuple(token for _ in range(len(guesses) + 1) for token in next(guessed)) for guesses in drafts]
        return right(tokens, [[token + 1 for token in guesses] for guesses in drafts])

    monkeypatch.setattr(runner, "accepted", accepted)
    tokens, counts = answers(tiny_engine(speculation=spelled("near:4"), adaptive_speculation=False), greedy)
    assert (tokens != expected) if broken == "accepts all" else (counts["accepted"] < counts["drafted"] / 4)


def test_drafts_made_on_a_device_are_split_by_sequence():
    assert split([1, 2, 3, 4], [(0, 0), (), (0,), (0,)]) == [[1, 2], [], [3], [4]]


# Contexts


@given(st.lists(st.integers(0, 2), max_size=40))
def test_the_automaton_finds_the_longest_suffix_that_occurred_before(tokens):
    automaton = SuffixAutomaton()
    for count in range(1, len(tokens) + 1):
        automaton.extend(tokens[count - 1 : count])
        beginning, (length, end) = tokens[:count], automaton.match
        suffixes = {size: beginning[count - size :] for size in range(count)}
        assert length == max(
            size for size, part in suffixes.items() if any(beginning[i : i + size] == part for i in range(count - size))
        )
        assert len(automaton) == count
        if length:
            assert end < count
            assert beginning[end - length : end] == beginning[count - length :]


@pytest.mark.parametrize(
    ("tokens", "drafts", "context"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3, 9], 3),
        ([7, 8, 7, 8, 7, 8, 7, 8], [7, 8, 7, 8, 7], 4),
        ([1, 2, 5, 1, 2, 6, 0, 1, 2], [6, 0, 1, 2, 6], 2),  # the latest occurrence
        ([4, 1, 4], [1, 4, 1, 4, 1], 1),
    ],
)
def test_what_followed_the_context_is_drafted(tokens, drafts, context):
    drafter = NgramDrafter()
    request = Request("a", tokens, SamplingParams(max_tokens=9))
    assert drafter.draft(request, 5) == (drafts, context)
    assert drafter.draft(request, 2) == (drafts[:2], context)
    assert not drafter.draft(Request("b", [1, 2, 3], SamplingParams(max_tokens=9)), 5)[0]
    drafter.free(["a", "b", "unknown"])
    assert not drafter._automata


# Lengths

FLAT = StepCosts([1, 64], [1.0, 1.0])
STEEP = StepCosts([1, 64], [1.0, 64.0])


def with_history(lengths, drafted, accepted, times=60):
    for _ in range(times):
        lengths.observe(Offer("a", 0, drafted), accepted)
    return lengths


def test_rows_that_cost_nothing_are_all_drafted_and_rows_that_cost_a_step_never():
    assert with_history(DraftLengths(6, FLAT), 6, 1).choose([Offer("a", 0, 6), Offer("b", 0, 2)], 2) == [6, 2]
    assert with_history(DraftLengths(6, STEEP), 6, 6).choose([Offer("a", 0, 6), Offer("b", 0, 2)], 2) == [0, 0]


def test_lengths_follow_acceptance():
    costs = StepCosts([1, 2, 9], [1.0, 1.1, 1.8])
    assert with_history(DraftLengths(8, costs), 8, 8).choose([Offer("a", 0, 8)], 1) == [8]
    assert with_history(DraftLengths(8, costs), 8, 0).choose([Offer("a", 0, 8)], 1) == [0]
    (some,) = with_history(DraftLengths(8, costs), 8, 1).choose([Offer("a", 0, 8)], 1)
    assert 1 <= some <= 4
    lengths = with_history(DraftLengths(8, costs), 8, 8)
    lengths.observe(Offer("b", 0, 8), 0)
    of_a, of_b = lengths.choose([Offer("a", 0, 8), Offer("b", 0, 8)], 2)
    assert of_a > of_b


def test_what_long_contexts_show_says_nothing_of_short_ones():
    lengths = DraftLengths(4, StepCosts([1, 16], [1.0, 4.0]))
    for _ in range(60):
        lengths.observe(Offer("a", 1, 4), 0)
        lengths.observe(Offer("a", 4, 4), 4)
    assert lengths.choose([Offer("a", 1, 4)], 1) == [0]
    assert lengths.choose([Offer("a", 4, 4), Offer("b", 4, 4)], 2) == [4, 4]


def test_the_draft_models_time_counts():
    free, dear = DraftLengths(4, FLAT, StepCosts([1], [0.01])), DraftLengths(4, FLAT, StepCosts([1], [0.9]))
    assert with_history(free, 4, 3).choose([Offer("a", 0, 4)], 1) == [4]
    assert with_history(dear, 4, 0).choose([Offer("a", 0, 4)], 1) == [0]


def test_steps_that_take_longer_than_their_models_are_counted_as_such():
    """Half of all drafts right: a draft costs 0.2 steps by the models alone, and half a step as the engine runs."""
    lengths = with_history(DraftLengths(1, FLAT, StepCosts([1], [0.2])), 2, 1)
    offer = [Offer("a", 0, 1)]
    assert lengths.choose(offer, 1) == [1]
    for _ in range(20):
        lengths.observe_step([0], 1.1)
    assert lengths.choose(offer, 1) == [1]  # nothing is known of drafting yet
    for _ in range(20):
        lengths.observe_step([1], 1.9)
    assert lengths.choose(offer, 1) == [0]


def test_some_steps_go_without_drafts_to_know_what_they_take():
    lengths, offer = with_history(DraftLengths(1, FLAT, StepCosts([1], [0.01])), 2, 2), [Offer("a", 0, 1)]
    for _ in range(8):
        assert lengths.choose(offer, 1) == [1]
        lengths.observe_step([1], 1.1)
    for _ in range(8):
        assert lengths.choose(offer, 1) == [0]
        lengths.observe_step([0], 1.0)
    assert lengths.choose(offer, 1) == [1]


def test_one_step_that_was_held_up_changes_little():
    lengths = with_history(DraftLengths(1, FLAT, StepCosts([1], [0.2])), 2, 1)
    for _ in range(20):
        lengths.observe_step([0], 1.0)
        lengths.observe_step([1], 1.2)
    lengths.observe_step([1], 100.0)
    assert lengths.choose([Offer("a", 0, 1)], 1) == [1]


def test_drafting_that_was_not_worth_it_is_tried_again():
    lengths = with_history(DraftLengths(4, StepCosts([1, 5], [1.0, 2.0])), 4, 0, times=400)
    waited = next(step for step in range(2000) if lengths.choose([Offer("a", 0, 4)], 1) != [0])
    assert 20 < waited < 1000
    lengths.free(["a"])
    assert not lengths._own


def test_costs_are_interpolated_and_grow_behind_the_largest_step():
    costs = StepCosts([1, 4, 8], [1.0, 4.0, 6.0])
    assert costs.of(torch.tensor([1, 2, 6, 8, 16]).numpy()).tolist() == [1.0, 2.0, 5.0, 6.0, 12.0]


# Settings


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ngram", "METHOD:TOKENS"),
        ("ngram:x", "METHOD:TOKENS"),
        ("medusa:3", "knows ngram, draft, early_exit, eagle, not 'medusa'"),
        ("ngram:0", "1 to 16 tokens"),
        ("ngram:17", "1 to 16 tokens"),
        ("draft:3", "needs a model"),
        ("ngram:3:folder", "takes no model"),
        ("early_exit:3", "needs a number of layers"),
        ("early_exit:3:0", "needs a number of layers"),
        ("early_exit:3:few", "METHOD:TOKENS"),
    ],
)
def test_mistakes_are_one_line(text, line):
    with pytest.raises(ConfigError, match=line):
        Speculation.parse(text)


def test_a_setting_is_read_as_it_is_written():
    for text in ("ngram:4", "draft:3:a/b:c", "early_exit:2:12"):
        assert str(Speculation.parse(text)) == text


@pytest.mark.parametrize(
    "obstacle",
    [{"attention_window": 8}, {"tensor_parallel_size": 2}],
)
def test_what_cannot_draft_is_refused(tiny_config, spelled, obstacle):
    with pytest.raises(ConfigError, match="--speculation draft does not work with"):
        tiny_config(speculation=spelled("same:3"), **obstacle)


def test_an_exit_behind_the_last_layer_is_refused(tiny_config):
    with pytest.raises(ConfigError, match="the model has 2 layers; exit before the last one"):
        load_engine(tiny_config(speculation="early_exit:3:2"))


def test_a_draft_model_with_other_tokens_is_refused(tiny_config, tmp_path, hf_model):
    write_checkpoint(tmp_path, hf_model)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"<|im_start|>"', '"<|start|>"'))
    with pytest.raises(ConfigError, match="has other tokens"):
        load_engine(tiny_config(speculation=f"draft:3:{tmp_path}"))


def test_a_draft_model_with_more_rows_than_the_model_is_refused(tiny_config, tmp_path):
    """It could draft a token that the model has no embedding of."""
    write_checkpoint(tmp_path, make_hf_model(vocab_size=300))
    with pytest.raises(ConfigError, match="has other tokens"):
        load_engine(tiny_config(speculation=f"draft:3:{tmp_path}"))


def test_the_offline_engine_takes_it_as_words_too(checkpoint_dir):
    settings = {"dtype": "float32", "num_blocks": 64, "threads": 1}
    with LLM(checkpoint_dir, **settings) as llm:
        expected = llm.generate(["hello hello"], SamplingParams(max_tokens=9, temperature=0.0))
    with LLM(checkpoint_dir, **settings, speculation={"method": "ngram", "num_tokens": 4}) as llm:
        assert llm.generate(["hello hello"], SamplingParams(max_tokens=9, temperature=0.0)) == expected


def test_a_server_counts_drafts_from_the_first_on(serve):
    body = {"prompt": [5, 6, 7], "max_tokens": 30, "temperature": 0, "ignore_eos": True, "logit_bias": {"9": 100}}
    names = ["drafts", "draft_tokens", "accepted_tokens"]

    async def test(s):
        async with s.client.get("/metrics") as answer:
            assert "spec_decode_num_drafts_total{" not in await answer.text()
        completion = await s.post(TEXT, body)
        assert completion["usage"]["completion_tokens"] == 30
        drafts, drafted, accepted = [await s.metric(f"spec_decode_num_{name}_total") for name in names]
        assert 0 < drafts <= drafted
        assert 0 < accepted <= drafted

    with_server(serve, test, speculation="ngram:4", adaptive_speculation=False)
