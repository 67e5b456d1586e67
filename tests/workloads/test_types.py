"""The bytes of a session, which determine the fingerprint, are pinned."""

import msgspec

from bakeoff.workloads import Message, Session, Turn
from bakeoff.workloads.approximate import ApproximateTokenizer
from bakeoff.workloads.types import ToolCall


def test_a_session_has_one_encoding_without_what_is_not_set() -> None:
    chat = Turn(12, 3, messages=(Message("user", "Why?"),))
    follow_up = Turn(4, 2, prompt="And", think_s=1.5)
    assert msgspec.json.encode(Session("chat-0", (chat, follow_up))) == (
        b'{"id":"chat-0","turns":['
        b'{"input_tokens":12,"output_tokens":3,"messages":[{"role":"user","content":"Why?"}]},'
        b'{"input_tokens":4,"output_tokens":2,"prompt":"And","think_s":1.5}]}'
    )


def test_unusual_fields_are_written_last() -> None:
    schema = Turn(1, 2, prompt="x", json_schema="{}")
    assert msgspec.json.encode(Session("s", (schema,), start_s=0.5)) == (
        b'{"id":"s","turns":[{"input_tokens":1,"output_tokens":2,"prompt":"x","json_schema":"{}"}],"start_s":0.5}'
    )


def test_a_chat_template_gets_calls_as_objects_and_reasoning_by_its_usual_name() -> None:
    asked = Message("assistant", "", (ToolCall("x", "sky", '{"at": "N"}'),), reasoning="Look up.")
    assert asked.for_template() == {
        "role": "assistant", "content": "", "reasoning_content": "Look up.",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "sky", "arguments": {"at": "N"}}}],
    }  # fmt: skip
    assert ApproximateTokenizer().render_chat([asked.for_template()]).startswith("Look up.\n")


def test_a_session_survives_being_stored() -> None:
    session = Session("s", (Turn(1, 2, prompt="x"), Turn(3, 4, messages=(Message("user", "y"),))), 1.25)
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session
