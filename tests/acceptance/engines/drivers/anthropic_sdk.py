"""Run by the environment that holds the SDKs: reads streams with ``anthropic`` and prints what it read."""

import json
import sys

from anthropic import Anthropic


def read(client: Anthropic, body: dict) -> dict:
    """Read one answer event by event."""
    reading = {"text": "", "output_tokens": None, "prompt_tokens": None, "finish": None}
    needed = {name: body.pop(name) for name in ("model", "max_tokens", "messages")}
    body.pop("stream")
    usage, is_complete = {}, False
    try:
        for event in client.messages.create(**needed, stream=True, extra_body=body):
            if event.type == "message_start":
                usage = event.message.usage.model_dump()
            elif event.type == "content_block_delta":
                reading["text"] += getattr(event.delta, "text", None) or getattr(event.delta, "thinking", None) or ""
            elif event.type == "message_delta":
                reading["finish"], reading["output_tokens"] = event.delta.stop_reason, event.usage.output_tokens
                usage |= {name: value for name, value in event.usage.model_dump().items() if value is not None}
            is_complete |= event.type == "message_stop"
    except Exception as exception:  # noqa: BLE001  (any exception of the client is its reading of the answer)
        reading["error"] = str(exception)
    if not is_complete:
        reading["finish"] = None
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    reading["prompt_tokens"] = sum(usage.get(part) or 0 for part in parts) if usage else None
    return reading


def main() -> None:
    job = json.load(sys.stdin)
    client = Anthropic(base_url=job["base_url"], api_key="none", max_retries=0, timeout=120)
    json.dump([read(client, body) for body in job["bodies"]], sys.stdout)


main()
