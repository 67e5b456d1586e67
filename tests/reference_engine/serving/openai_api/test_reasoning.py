"""The reasoning of an answer is split from its text, however the tags are cut into tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.loading.tokenizer import open_tokenizer
from bakeoff.reference_engine.serving.openai_api import reading
from bakeoff.reference_engine.serving.openai_api.reasoning import ReasoningSplitter, has_thinking_tags
from tests.reference_engine.server_calls import CHAT, with_server
from tests.reference_engine.serving.test_server import scripted


def split(pieces, prompt_end=""):
    splitter = ReasoningSplitter(prompt_end)
    parts = [splitter.push(piece, is_last=i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return "".join(reasoning for reasoning, _ in parts), "".join(content for _, content in parts), splitter.num_tokens


@pytest.mark.parametrize(
    ("text", "prompt_end", "wanted"),
    [
        ("<think>hm</think>\n\n18", "", ("hm", "\n\n18")),
        ("\n<think>hm</think>18", "", ("hm", "18")),
        ("hm</think>18", "assistant\n<think>\n", ("hm", "18")),
        ("18", "", ("", "18")),
        ("a <think> b", "", ("", "a <think> b")),  # the tag is text where it does not begin the answer
        ("18", "<think>\n\n</think>\n\n", ("", "18")),  # thinking was switched off
        ("<think>hm", "", ("hm", "")),
        ("<think>hm</thin", "", ("hm</thin", "")),
        ("<thi", "", ("", "<thi")),
        ("<think>a < b</ c</think>", "", ("a < b</ c", "")),
    ],
)
@given(data=st.data())
def test_any_cut_gives_the_same(text, prompt_end, wanted, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    reasoning, content, _ = split(pieces, prompt_end)
    assert (reasoning, content) == wanted


def test_tokens_of_the_tags_count_as_reasoning():
    assert split(["<think>", "a", "b", "</think>", "c", "d"])[2] == 4
    assert split(["a", "</think>", "c"], "<think>")[2] == 2
    assert split(["a", "b"])[2] == 0


def test_templates_tell_whether_a_model_reasons():
    assert has_thinking_tags("{{ '<think></think>' }}")
    assert not has_thinking_tags("{{ messages }}")
    assert not has_thinking_tags(None)


def test_the_server_streams_it_in_a_field_of_its_own(serve, checkpoint_dir, monkeypatch):
    monkeypatch.setattr(reading, "has_thinking_tags", lambda template: True)
    text = "<think>hello</think> world"
    ids = open_tokenizer(checkpoint_dir).encode(text)

    async def test(s):
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": len(ids), "ignore_eos": True}
        whole = await s.post(CHAT, body)
        message = whole["choices"][0]["message"]
        assert message == {"role": "assistant", "content": " world", "reasoning_content": "hello"}
        counted = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < counted < len(ids)
        events = await s.stream(CHAT, body | {"stream_options": {"include_usage": True}})
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "hello"
        assert "".join(delta.get("content") or "" for delta in deltas) == " world"
        assert not any(delta.get("content") and delta.get("reasoning_content") for delta in deltas)
        assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == counted

    with_server(lambda: serve(scripted([*ids, *ids])), test)
