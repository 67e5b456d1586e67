"""Run by the environment that holds the SDKs: reads streams with ``anthropic`` and prints what it read."""

import json
import sys

from anthropic import Anthropic


def read(client: Anthropic, body: dict) -> dict:
    """One answer, event by event."""
    made = {"text": "", "output_tokens": None, "prompt_tokens": None, "finish": None}
    needed = {name: body.pop(name) for name in ("model", "max_tokens", "messages")}
    body.pop("stream")
    asked, stopped = {}, False
    try:
        for event in client.messages.create(**needed, stream=True, extra_body=body):
            if event.type == "message_start":
                asked = event.message.usage.model_dump()
            elif event.type == "content_block_delta":
                made["text"] += getattr(event.delta, "text", None) or getattr(event.delta, "thinking", None) or ""
            elif event.type == "message_delta":
                made["finish"], made["output_tokens"] = event.delta.stop_reason, event.usage.output_tokens
                asked |= {name: value for name, value in event.usage.model_dump().items() if value is not None}
            stopped |= event.type == "message_stop"
    except Exception as caught:  # noqa: BLE001  (whatever its client raises is what it made of the answer)
        made["error"] = str(caught)
    if not stopped:
        made["finish"] = None
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    made["prompt_tokens"] = sum(asked.get(part) or 0 for part in parts) if asked else None
    return made


def main() -> None:
    job = json.load(sys.stdin)
    client = Anthropic(base_url=job["base_url"], api_key="none", max_retries=0, timeout=120)
    json.dump([read(client, body) for body in job["bodies"]], sys.stdout)


main()
