"""Prompts as blocks: the rule of tokens, prefixes that stay equal, and what a cache of given size holds."""

import json
from typing import Any

import pytest

from bakeoff.harness.truth import Schedule
from bakeoff.harness.truth.answered import CHAT, COMPLETIONS, CompletionRequest
from bakeoff.harness.truth.payloads import AnswerTexts
from bakeoff.harness.truth.prefix_cache import PrefixCache, Prompt
from bakeoff.harness.truth.requests import MalformedRequest, body_of
from bakeoff.harness.truth.script import Script

NO_TEXTS = AnswerTexts("", "", "")


def chat(*messages: dict[str, Any], cache: PrefixCache | None = None) -> Prompt:
    return prompt(CHAT, {"messages": messages}, cache)


def completion(content: Any, cache: PrefixCache | None = None) -> Prompt:
    return prompt(COMPLETIONS, {"prompt": content}, cache)


def prompt(path: str, body: dict[str, Any], cache: PrefixCache | None = None) -> Prompt:
    return (cache or PrefixCache(1000, 2)).prompt(path, body_of(path, json.dumps(body).encode()))


def said(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", 0),
        ("one", 1),
        ("  one\ttwo\n three ", 3),
        (["one two", "three"], 3),
        ([5, 6, 7], 3),
        ([[5, 6], [7]], 3),
        (["one two", 7], 3),
    ],
)
def test_a_token_is_a_word_or_an_id(content: Any, tokens: int):
    made = completion(content)
    assert (made.tokens, len(made.blocks)) == (tokens, tokens // 2)


def test_roles_count_and_tell_messages_apart():
    question = chat(said("system", "be brief"), said("user", "one two three"))
    assert question.tokens == 1 + 2 + 1 + 3 + 1, "the last one is the role of the answer"
    assert chat(said("system", "be brief"), said("assistant", "one two three")).blocks[0] == question.blocks[0]
    assert chat(said("system", "be brief"), said("assistant", "one two three")).blocks[1] != question.blocks[1]
    calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]
    assert chat(said("assistant", "", reasoning="well then", tool_calls=calls)).tokens == 1 + 2 + 1 + 2 + 1
    for odd in ({"role": 5, "content": None}, {"tool_calls": [7, {"function": 8}]}, {"tool_calls": "look"}):
        assert chat(odd).tokens == 2


def test_the_end_of_a_word_is_part_of_it():
    assert completion("one two three four").blocks == completion("one two three four five").blocks
    assert completion("one two three fourth").blocks[0] == completion("one two three four").blocks[0]
    assert completion("one two three fourth").blocks[1] != completion("one two three four").blocks[1]
    assert completion([1, 2, 3, 4]).blocks != completion([1, 2, 4, 3]).blocks


@pytest.mark.parametrize("kinds", ["", "3r2t3c"])
@pytest.mark.parametrize("words", range(5))
@pytest.mark.parametrize("trimmed", [False, True])
def test_an_answer_that_is_sent_back_has_the_blocks_that_it_was_kept_under(kinds: str, words: int, trimmed: bool):
    script = Script(Schedule(kinds=kinds))
    request = CompletionRequest(path=CHAT, tokens=9)
    texts = script.texts(request)
    assert "".join(texts) == " a" * 9
    history = [said("user", " ".join(["word"] * words))]
    asked = chat(*history)
    kept = asked.blocks + asked.answer_blocks(texts, 9)
    reasoning, content, arguments = (text.strip() if trimmed else text for text in texts)
    thought = {"reasoning_content": reasoning} if reasoning else {}
    called = {"tool_calls": [{"function": {"name": "", "arguments": arguments}}]} if arguments else {}
    again = chat(*history, said("assistant", content, **thought, **called), said("user", "and now"))
    assert again.blocks[: len(kept)] == kept
    assert len(kept) == (words + 2 + 9) // 2, "each token of the answer is one"


def test_a_completion_that_goes_on_has_the_blocks_of_prompt_and_answer():
    asked = completion("one two three")
    kept = asked.blocks + asked.answer_blocks(AnswerTexts("", " a a a", ""), 3)
    assert completion("one two three a a a and more").blocks[:3] == kept
    asked = completion([7, 8, 9])
    kept = asked.blocks + asked.answer_blocks(NO_TEXTS, 3)
    assert completion([7, 8, 9, 0, 1, 2, 5]).blocks[:3] == kept


def test_a_prompt_that_continues_another_is_hashed_as_if_it_were_new():
    cache = PrefixCache(1000, 2)
    text = "one two three four"
    for longer in (text, f"{text} five six", f"{text}th five six", f"{text} five six seven eight", "one two", [1, 2]):
        made, new = completion(longer, cache), completion(longer)
        assert (made.blocks, made.tokens, made.head) == (new.blocks, new.tokens, new.head)
        kept = [part.answer_blocks(AnswerTexts("", " a a a", ""), 3) for part in (made, new)]
        assert kept[0] == kept[1]


def test_at_least_one_token_is_computed_and_only_whole_blocks_are_found():
    cache = PrefixCache(1000, 4)
    hits = []
    for content in ([1] * 8, [1] * 8, [1] * 9, [1] * 3):
        made = completion(content, cache)
        pin, hit_tokens = cache.begin(made)
        cache.end(made, pin, [])
        hits.append(hit_tokens)
    assert hits == [0, 4, 8, 0]
    assert (cache.queried_tokens, cache.hit_tokens) == (28, 12)


def test_what_does_not_fit_beside_answers_in_progress_is_not_kept():
    cache = PrefixCache(4 * 4, 4)
    first, second = completion([1] * 12, cache), completion([2] * 12, cache)
    pin, _ = cache.begin(first)
    assert cache.usage == 0.75
    other, _ = cache.begin(second)
    assert cache.usage == 1.0
    assert not cache.clear(), "it is in use"
    cache.end(second, other, second.answer_blocks(NO_TEXTS, 4))
    cache.end(first, pin, [])
    assert cache.usage == 0.0
    assert cache.begin(completion([1] * 16, cache))[1] == 12
    assert cache.begin(completion([2] * 16, cache))[1] == 0, "its block made room for the sixteenth token"


def test_an_id_of_any_size_is_refused_or_understood():
    with pytest.raises(MalformedRequest, match="64 bits"):
        completion([1, 2**63])
    assert completion([-1, 2**63 - 1]).tokens == 2
