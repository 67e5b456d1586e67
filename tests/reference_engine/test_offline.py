import signal

import pytest

from bakeoff.reference_engine.core.request import FinishReason, SamplingParams
from bakeoff.reference_engine.engine.text_writer import TextWriter
from bakeoff.reference_engine.errors import EngineUnavailableError, RequestError
from bakeoff.reference_engine.offline import LLM

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


@pytest.fixture
def llm(checkpoint_dir):
    return LLM(checkpoint_dir, dtype="float32", num_blocks=64, max_num_seqs=8, threads=1)


def test_texts_and_tokens_are_answered_alike(llm):
    text = "hello world"
    by_text, by_tokens = llm.generate([text, llm.tokenizer.encode(text)], GREEDY, ignore_eos=True)
    assert by_text == by_tokens
    (completion,) = by_text.completions
    assert (len(completion.token_ids), completion.finish_reason) == (12, FinishReason.LENGTH)
    assert completion.text == llm.tokenizer.decode(completion.token_ids)


def test_completions_of_one_prompt_are_those_of_their_seeds_alone(llm):
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=5, logprobs=0)
    (together,) = llm.generate(["hello"], params, n=3, ignore_eos=True)
    alone = [
        llm.generate(["hello"], SamplingParams(max_tokens=9, temperature=1.0, seed=5 + i), ignore_eos=True)
        for i in range(3)
    ]
    tokens = [completion.token_ids for completion in together.completions]
    assert tokens == [answer.completions[0].token_ids for (answer,) in alone]
    assert len({tuple(ids) for ids in tokens}) == 3
    assert all(len(completion.logprobs) == 9 and max(completion.logprobs) <= 0 for completion in together.completions)


def test_a_stop_string_ends_a_completion_and_leaves_its_text(llm):
    (whole,) = llm.generate(["hello"], GREEDY, ignore_eos=True)
    text = whole.completions[0].text
    stop = text[3:5]
    (cut,) = llm.generate(["hello"], GREEDY, stop=[stop], ignore_eos=True)
    assert cut.completions[0].text == text[: text.index(stop)]
    assert cut.completions[0].finish_reason is FinishReason.STOP
    assert not llm.engine.has_work


def test_a_stop_string_ends_a_completion_whose_step_has_accepted_more_drafts(checkpoint_dir, llm):
    (whole,) = llm.generate(["hello"], GREEDY, ignore_eos=True)
    text = whole.completions[0].text
    stops = [text[start : start + 2] for start in range(len(text) - 2)]
    drafting = LLM(
        checkpoint_dir, dtype="float32", num_blocks=64, max_num_seqs=8, threads=1,
        speculation=f"draft:4:{checkpoint_dir}", adaptive_speculation=False,
    )  # fmt: skip
    for stop in stops:
        (plain,), (drafted,) = (
            each.generate(["hello"], GREEDY, stop=[stop], ignore_eos=True) for each in (llm, drafting)
        )
        assert drafted == plain
        assert drafted.completions[0].finish_reason is FinishReason.STOP


def test_where_one_prompt_is_impossible_none_is_computed(llm):
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate([[5, 6], []], GREEDY)
    assert not llm.engine.has_work


def test_an_error_between_steps_cancels_what_is_left(llm, monkeypatch):
    expected = llm.generate(["hello", "world"], GREEDY, n=2, ignore_eos=True)
    with monkeypatch.context() as patch:
        patch.setattr(TextWriter, "push", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate(["hello", "world"], GREEDY, n=2, ignore_eos=True)
    assert not llm.engine.has_work
    llm.engine.check_integrity()
    assert llm.generate(["hello", "world"], GREEDY, n=2, ignore_eos=True) == expected


@pytest.mark.usefixtures("_default_interrupts")
def test_ctrl_c_in_a_step_cancels_what_is_left_and_the_model_stays(llm, monkeypatch):
    expected = llm.generate(["hello", "world"], GREEDY, ignore_eos=True)
    launch = llm.engine.core._runner.launch

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return launch(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.core._runner, "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["hello", "world"], GREEDY, ignore_eos=True)
    assert not llm.engine.has_work
    llm.engine.check_integrity()
    assert llm.generate(["hello", "world"], GREEDY, ignore_eos=True) == expected


@pytest.mark.usefixtures("_default_interrupts")
def test_a_second_ctrl_c_breaks_the_step_off(llm, monkeypatch):
    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(llm.engine.core._runner, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["hello"], GREEDY)
    with pytest.raises(EngineUnavailableError, match="a step was broken off"):
        llm.generate(["hello"], GREEDY)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
