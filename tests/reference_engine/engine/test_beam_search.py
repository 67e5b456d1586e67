import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.core.outputs import Candidate, SampledToken
from bakeoff.reference_engine.core.request import BeamParams, FinishReason, Request, SamplingParams
from bakeoff.reference_engine.engine.beam_search import BeamSearch
from bakeoff.reference_engine.errors import EngineBugError, RequestError
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.scheduling.limits import Limits
from tests.reference_engine.stepping import Bench, RememberingRunner, request, sample, search

STOP = 2


def ways(model, token_ids):
    """Continuations, best first, of a model that looks at the last token and the length only."""
    row = model[len(token_ids)][token_ids[-1] if token_ids else 0]
    return sorted((Candidate(SampledToken(token), value) for token, value in enumerate(row)), key=lambda w: -w.log_prob)


def run(model, params, max_tokens):
    rules = BeamSearch(params, frozenset({STOP}), max_tokens)
    while rules.beams:
        before = rules.beams
        extensions = rules.advance([ways(model, [token.token_id for token in beam.tokens]) for beam in rules.beams])
        assert [(*before[beam.parent].tokens, beam.token) for beam in extensions] == [
            beam.tokens for beam in rules.beams
        ]
        assert len(rules.beams) <= params.width
    return rules


def models(depth):
    log_probs = st.floats(-8, -0.01)
    return st.lists(
        st.lists(st.lists(log_probs, min_size=3, max_size=3), min_size=3, max_size=3), min_size=depth, max_size=depth
    )


@given(model=models(4))
def test_where_every_beam_is_kept_the_likeliest_answer_of_all_is_found(model):
    every = []
    for length in range(1, 5):
        for tokens in itertools.product(range(3), repeat=length):
            if STOP not in tokens[:-1] and (tokens[-1] == STOP or length == 4):
                places = range(length)
                every.append(sum(model[i][tokens[i - 1] if i else 0][tokens[i]] for i in places))
    rules = run(model, BeamParams(len(every), 0.0, "never"), 4)
    assert [hypothesis.log_prob for hypothesis in rules.hypotheses] == pytest.approx(sorted(every, reverse=True))


@given(
    model=models(7),
    width=st.integers(2, 3),
    penalty=st.floats(-2, 2),
    early=st.sampled_from([False, True, "never"]),
    length=st.integers(1, 7),
)
def test_hypotheses_end_differ_and_stand_in_order(model, width, penalty, early, length):
    rules = run(model, BeamParams(width, penalty, early), length)
    answers = [tuple(token.token_id for token in hypothesis.tokens) for hypothesis in rules.hypotheses]
    scores = [hypothesis.log_prob / len(hypothesis.tokens) ** penalty for hypothesis in rules.hypotheses]
    assert len(set(answers)) == len(answers) == width
    assert scores == sorted(scores, reverse=True)
    for hypothesis, tokens in zip(rules.hypotheses, answers, strict=True):
        assert STOP not in tokens[:-1]
        stopped = rules.finish_reason(hypothesis) is FinishReason.STOP
        assert stopped == (tokens[-1] == STOP)
        assert stopped or len(tokens) == length


def test_one_beam_and_wild_length_penalties_are_refused():
    with pytest.raises(RequestError, match="at least 2 beams"):
        BeamParams(1)
    for penalty in (10.5, -11, math.inf, math.nan):
        with pytest.raises(RequestError, match=r"length_penalty .* is not between -10 and 10"):
            BeamParams(2, penalty)


def searching(name="a", prompt=6, output=5, width=3, **more):
    return request(name, prompt, output, beams=BeamParams(width), stop_token_ids=frozenset({5}), **more)


def bench(**settings):
    return Bench(RememberingRunner(4, 2), **settings)


def answers_of(reports):
    answers = {}
    for output in (output for report in reports for output in report.outputs):
        answers.setdefault(output.request_id, []).append(output.token.token_id)
    return answers


def test_all_tokens_come_out_when_the_search_is_over_and_beams_share_what_they_can():
    leader, engine = searching(prompt=9, output=12), bench()
    reports = engine.finish(leader)
    assert [bool(report.outputs) for report in reports] == [False] * (len(reports) - 1) + [True]
    best = search([1] * 9, leader.sampling)
    assert list(answers_of(reports).values()) == best
    assert [output.finish_reason is not None for output in reports[-1].outputs].count(True) == 3
    assert reports[-1].prompt_tokens == 3 * 9
    # The prompt's two full blocks are there once, and so is what the beams have in common.
    assert max(report.used_blocks for report in reports) < 2 + 3 * 4
    assert reports[-1].used_blocks == 0


def test_a_search_ends_where_the_cache_holds_but_one_of_its_beams():
    leader, engine = searching(prompt=9, output=12, width=4), bench(blocks=5)
    reports = engine.finish(leader)
    assert list(answers_of(reports).values()) == search([1] * 9, leader.sampling)
    assert sum(report.preemptions for report in reports) > 12


def test_time_to_the_first_token_is_that_of_the_result():
    leader, engine = searching(output=4), bench()
    engine.add(leader)
    for now in range(1, 9):
        engine.now = float(now)
        report = engine.step()
        if report.outputs:
            break
    phases = [output.phases for output in report.outputs if output.phases]
    assert [(phase.prefill_s, phase.decode_s, phase.e2e_s) for phase in phases] == [(0.0, now - 1.0, now)] * 3
    assert {output.gap_s for output in report.outputs} == {None}


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", ["a", "a/1"])
def test_a_search_is_cancelled_as_a_whole(steps, name):
    leader, other, engine = searching(output=9), request("b", 3, 9), bench()
    engine.add(leader, other)
    engine.steps(steps)
    engine.engine.cancel(name)
    report = engine.step()
    is_known = name == "a" or steps > 0  # before that, only its leader is here
    assert report.running == (1 if is_known else 4)
    engine.engine.cancel("a")
    engine.engine.cancel("b")
    assert engine.step().used_blocks == 0


def test_a_search_waits_until_there_are_seats_for_all_its_beams():
    engine = bench(seqs=4)
    engine.add(request("x", 3, 4), request("y", 3, 4), searching(width=3, output=20))
    assert [engine.step().running for _ in range(4)] == [2, 2, 2, 0]
    assert [engine.step().running for _ in range(2)] == [3, 3]


@pytest.mark.parametrize(("blocks", "tokens", "first"), [(6, 4, 1), (6, 7, 3), (7, 4, 0), (7, 7, 5), (8, 5, 5)])
def test_who_takes_the_seat_of_a_beam_keeps_it(blocks, tokens, first):
    engine, prompt = bench(seqs=3, blocks=blocks, tokens=tokens), [first, 1, 2, 3, 4, 5, 1, 2]
    leader = request("a", prompt, 14, beams=BeamParams(3))
    members = (leader, *leader.siblings)
    engine.add(leader)
    reports = engine.finish(*(request(f"x{number}", 1, 5) for number in range(3)))
    assert max(report.running for report in reports) == 3
    answers = answers_of(reports)
    assert [answers[member.request_id] for member in members] == search(prompt, leader.sampling)


@pytest.mark.parametrize(("window", "size", "tokens"), [(5, 2, 4), (5, 2, 6), (7, 1, 4), (7, 2, 6)])
def test_behind_windows_beams_that_wait_make_room_for_those_that_do_not(window, size, tokens):
    sees, blocks = (Visible(window=window),), (window + tokens) // size + 2
    runner = RememberingRunner(size, 2, sees)
    engine = Bench(runner, blocks=blocks, size=size, seqs=4, tokens=tokens, visible=sees)
    engine.engine.core.limits = Limits(1000, 1000, size, 10_000, 4)  # blocks come free again
    leader = request("a", 20, 20, beams=BeamParams(3))
    engine.add(leader)
    reports = list(
        itertools.takewhile(lambda report: report.running + report.waiting, (engine.step() for _ in range(2000)))
    )
    assert sum(report.preemptions for report in reports) > 0
    assert not engine.engine.has_work


def test_as_many_requests_as_beams_or_it_is_our_mistake():
    params = SamplingParams(max_tokens=2, beams=BeamParams(3))
    with pytest.raises(EngineBugError, match="1 requests cannot search 3 beams"):
        bench().add(Request("a", [1], params))


def beams_of(logits, **sampling):
    params = SamplingParams(max_tokens=5, beams=BeamParams(2), **sampling)
    (token,) = sample(logits, [Request("a", [0, 1], params)])
    return {
        candidate.token.token_id: (candidate.log_prob, candidate.token.logprob, candidate.token.alternatives)
        for candidate in token.candidates
    }


def test_the_sampler_gives_the_best_continuations_after_penalties_and_reports_what_the_model_said():
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -3.0]])
    plain = logits.log_softmax(-1)[0].tolist()
    assert beams_of(logits.clone()) == {
        0: (pytest.approx(plain[0]), None, ()),
        1: (pytest.approx(plain[1]), None, ()),
    }
    changed = beams_of(
        logits.clone(),
        repetition_penalty=9.0,
        min_tokens=1,
        stop_token_ids=frozenset({2}),
        logit_bias={4: 1.5},
        logprobs=1,
    )
    # 2 is forbidden; 0 and 1, which stand in the prompt, are penalised as log-probabilities, as Transformers does it.
    assert list(changed) == [4, 3, 0]
    assert changed[0][:2] == (pytest.approx(9 * plain[0]), pytest.approx(plain[0]))
    assert changed[4][:2] == (pytest.approx(plain[4] + 1.5), pytest.approx(plain[4]))
    assert changed[3][2] == ((0, pytest.approx(plain[0])),)


def test_a_model_that_computes_no_numbers_leaves_no_search_waiting():
    assert len(beams_of(torch.full((1, 6), math.nan))) == 2


def test_offline_the_best_come_first_with_their_log_probabilities(checkpoint_dir):
    llm = LLM(checkpoint_dir, dtype="float32", num_blocks=64, max_num_seqs=8, threads=1)
    params = SamplingParams(max_tokens=8, beams=BeamParams(4))
    (two,), (four,) = (llm.generate(["hello"], params, n=n, ignore_eos=True) for n in (2, 4))
    assert two.completions == four.completions[:2]
    sums = [completion.cumulative_logprob for completion in four.completions]
    assert sums == sorted(sums, reverse=True)
    greedy = SamplingParams(max_tokens=8, temperature=0.0, logprobs=0)
    (alone,) = llm.generate(["hello"], greedy, ignore_eos=True)
    assert sums[0] >= alone.completions[0].cumulative_logprob
    for mistake, more, message in (
        (params, {"n": 5}, "5 completions are more than 4 beams"),
        (params, {"stop": ["x"]}, "stops at tokens, not at strings"),
        (
            SamplingParams(max_tokens=8, beams=BeamParams(9)),
            {},
            "9 answers to one prompt are more than the 8 sequences",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            llm.generate(["hello"], mistake, **more)
    assert not llm.engine.has_work
