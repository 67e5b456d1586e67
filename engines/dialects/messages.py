"""Chat messages in the form of each API: text, pictures, and calls of tools with their results.

Reasoning is sent in chats alone: OpenAI's Responses and Anthropic take back only what they signed or encrypted.
"""

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from bakeoff.workloads.images import png
from bakeoff.workloads.types import Image, Message, ToolCall


def chat_messages(messages: Sequence[Message], reasoning_field: str | None) -> list[dict[str, Any]]:
    """Messages of OpenAI's chat completions.

    Args:
        messages: the chat.
        reasoning_field: where the server looks for the reasoning of earlier answers; None if it refuses any.
    """
    return [_of_chat(message, reasoning_field) for message in messages]


def response_items(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Items of OpenAI's Responses: calls of tools and their results are items of their own."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message.tool_call_id is not None:
            found.append(
                {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
            )  # fmt: skip
            continue
        if message.images:
            pictures = [{"type": "input_image", "image_url": _url(image)} for image in message.images]
            content = [*pictures, {"type": "input_text", "text": message.content}]
            found.append({"role": message.role, "content": content})
        elif message.content or not message.tool_calls:
            found.append({"role": message.role, "content": message.content})
        found += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
    return found


def anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages of Anthropic's API, without those of the system: results of tools are blocks of the user."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message.tool_call_id is None:
            found.append({"role": message.role, "content": _blocks(message)})
            continue
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        last = found[-1]["content"] if found and found[-1]["role"] == "user" else None
        if isinstance(last, list):
            last.append(result)  # all results of one turn must be in one message
        else:
            found.append({"role": "user", "content": [result]})
    return found


def _of_chat(message: Message, reasoning_field: str | None) -> dict[str, Any]:
    content: Any = message.content
    if message.images:
        pictures = [{"type": "image_url", "image_url": {"url": _url(image)}} for image in message.images]
        content = [*pictures, {"type": "text", "text": message.content}]
    fields: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        fields["content"] = content or None
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.reasoning and reasoning_field is not None:
        fields[reasoning_field] = message.reasoning
    return fields


def _blocks(message: Message) -> Any:  # noqa: ANN401  (plain text needs no blocks)
    if not message.images and not message.tool_calls:
        return message.content
    blocks: list[dict[str, Any]] = [{"type": "image", "source": _source(image)} for image in message.images]
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    return [*blocks, *(_tool_use(call) for call in message.tool_calls)]


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": msgspec.Raw(call.arguments.encode())}


def _source(image: Image) -> dict[str, str]:
    return {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(image)).decode()}


def _url(image: Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"
