"""Engines that take only text get the chat as the model's template writes it, to the token."""

from pathlib import Path
from typing import Any

from bakeoff.engines.dialects import OpenAiDialect
from bakeoff.engines.dialects.triton import TritonDialect
from bakeoff.harness.client.wire.rendering import asking, written_out
from bakeoff.workloads import Tokenizer
from bakeoff.workloads.types import Message, Turn
from tests.workloads.small_tokenizers import PLAIN, checkpoint

CHAT = (Message("user", "Explain the risks."), Message("assistant", "None."), Message("user", "And now?"))


def chat(model: Tokenizer) -> Turn:
    rendered = model.render_chat([{"role": message.role, "content": message.content} for message in CHAT])
    return Turn(model.count(rendered), 4, messages=CHAT)


def test_what_the_engine_puts_before_every_text_is_not_there_twice(tmp_path: Path):
    model = Tokenizer(checkpoint(tmp_path, template="<|endoftext|>" + PLAIN))
    turn = chat(model)
    text = written_out(turn, model).prompt
    assert text is not None
    assert not text.startswith("<|endoftext|>")
    assert len(model.encode_prompt(text)) == turn.input_tokens
    assert all(message.content in text for message in CHAT)


def test_a_template_without_a_first_token_stays_whole(tmp_path: Path):
    model = Tokenizer(checkpoint(tmp_path, template=PLAIN))
    rendered = model.render_chat([{"role": message.role, "content": message.content} for message in CHAT])
    assert written_out(chat(model), model).prompt == rendered


def test_completions_stay_as_they_are(tmp_path: Path):
    turn = Turn(3, 4, prompt="as it is")
    assert written_out(turn, Tokenizer(checkpoint(tmp_path))) is turn


def test_only_formats_without_chats_are_written_out(tmp_path: Path):
    model: Any = Tokenizer(checkpoint(tmp_path))
    assert b"messages" in asking(OpenAiDialect(), model)(chat(model), "m").body
    assert b"assistant" in asking(TritonDialect(), model)(chat(model), "m").body
