"""A server that answers in the recorded time, and notes who asked for what and when."""

import asyncio
import json
import time
from typing import Any

import msgspec
from aiohttp import web

from benchmarks.agents.loopback import LoopbackServer
from benchmarks.agents.playing.recording import ITL_S, TTFT_S


class Asked(msgspec.Struct):
    """A request.

    Attributes:
        conversation: the id in the header of its session.
        messages: role and text of each, or an empty role and the prompt.
        output_tokens: that it may have.
        arrived_s, ended_s: of its head, and of its answer's last byte; of the monotonic clock. No end: infinity.
    """

    conversation: str
    messages: list[tuple[str, str]]
    output_tokens: int
    arrived_s: float
    ended_s: float = float("inf")


class RecordingServer(LoopbackServer):
    """Answers completions and chats.

    Attributes:
        asked: what was asked so far.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        super().__init__({"/v1/completions": self._answer, "/v1/chat/completions": self._answer})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arrived_s = time.monotonic()
        body = await request.json()
        conversation = request.headers.get("X-Correlation-ID") or request.headers.get("X-Session-ID", "")
        tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 1
        is_chat = "messages" in body
        messages = [(message["role"], message["content"]) for message in body.get("messages", ())]
        messages = messages or [("", body["prompt"])]
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        asked = Asked(conversation, messages, tokens, arrived_s)
        self.asked.append(asked)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(tokens):
            await asyncio.sleep(arrived_s + TTFT_S + ITL_S * number - time.monotonic())
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if number == tokens - 1 else None}
            choice |= {"delta": {"content": " a"}} if is_chat else {"text": " a"}
            await self._write(response, {"id": "c", "object": kind, "choices": [choice]})
        usage = {"prompt_tokens": 6, "completion_tokens": tokens, "total_tokens": 6 + tokens}
        await self._write(response, {"id": "c", "object": kind, "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        asked.ended_s = time.monotonic()
        return response

    @staticmethod
    async def _write(response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: %b\n\n" % json.dumps(event).encode())
