"""Pictures, calls of tools and their results, in the form of each API."""

import base64
import json
import struct
import zlib
from typing import Any

from bakeoff.engines.dialects import (
    AnthropicDialect,
    Dialect,
    OpenAiDialect,
    OpenAiServiceDialect,
    ReferenceDialect,
    ResponsesDialect,
    SglangDialect,
    VllmDialect,
)
from bakeoff.workloads.images import png
from bakeoff.workloads.types import Image, Message, ToolCall, Turn

PICTURE = Image(40, 20, 7)
URL = f"data:image/png;base64,{base64.b64encode(png(PICTURE)).decode()}"
CALL = ToolCall("t1", "sky", '{"city": "Rome"}')
CHAT = (
    Message("user", "Weather?"),
    Message("assistant", "", (CALL, ToolCall("t2", "sea", "{}"))),
    Message("tool", "20", tool_call_id="t1"),
    Message("tool", "30", tool_call_id="t2"),
)


def body(dialect: Dialect, *messages: Message) -> Any:
    return json.loads(dialect.request(Turn(1, 1, messages=messages), "m").body)


def test_a_picture_is_a_png_of_its_size_with_its_own_pixels() -> None:
    data = png(PICTURE)
    assert data == png(PICTURE) != png(Image(40, 20, 8))
    assert struct.unpack(">II", data[16:24]) == (40, 20)
    length = struct.unpack(">I", data[33:37])[0]
    assert data[37:41] == b"IDAT"
    assert len(zlib.decompress(data[41 : 41 + length])) == 20 * (1 + 3 * 40)
    assert struct.unpack(">I", data[41 + length : 45 + length])[0] == zlib.crc32(data[37 : 41 + length])


def test_pictures_stand_before_the_question() -> None:
    seen = Message("user", "What?", images=(PICTURE,))
    assert body(OpenAiDialect(), seen)["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "What?"}
    ]  # fmt: skip
    assert body(ResponsesDialect(), seen)["input"][0]["content"] == [
        {"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "What?"}
    ]  # fmt: skip
    image, text = body(AnthropicDialect(), seen)["messages"][0]["content"]
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]}
    assert text == {"type": "text", "text": "What?"}


def test_calls_and_results_keep_their_ids() -> None:
    _, asked, first, second = body(OpenAiDialect(), *CHAT)["messages"]
    assert asked["content"] is None
    assert asked["tool_calls"][0] == {
        "id": "t1", "type": "function", "function": {"name": "sky", "arguments": '{"city": "Rome"}'}
    }  # fmt: skip
    assert [(result["tool_call_id"], result["content"]) for result in (first, second)] == [("t1", "20"), ("t2", "30")]
    items = body(ResponsesDialect(), *CHAT)["input"]
    assert [item.get("type") for item in items] == [None, *["function_call"] * 2, *["function_call_output"] * 2]
    assert items[1]["call_id"] == items[3]["call_id"] == "t1"
    _, called, results = body(AnthropicDialect(), *CHAT)["messages"]
    assert called["content"][0] == {"type": "tool_use", "id": "t1", "name": "sky", "input": {"city": "Rome"}}
    assert (results["role"], [block["tool_use_id"] for block in results["content"]]) == ("user", ["t1", "t2"])


def test_reasoning_goes_back_in_the_field_that_the_server_reads() -> None:
    """vLLM 0.32 reads ``reasoning`` alone, the others ``reasoning_content``; OpenAI's service refuses both."""
    thought = Message("assistant", "20", reasoning="Look up.")
    fields = {"role": "assistant", "content": "20"}
    for dialect in (OpenAiDialect(), SglangDialect(), ReferenceDialect()):
        assert body(dialect, thought)["messages"] == [{**fields, "reasoning_content": "Look up."}]
    assert body(VllmDialect(), thought)["messages"] == [{**fields, "reasoning": "Look up."}]
    assert body(OpenAiServiceDialect(), thought)["messages"] == [fields]
    assert body(ResponsesDialect(), thought)["input"] == [fields]
    assert body(AnthropicDialect(), thought)["messages"] == [fields]
