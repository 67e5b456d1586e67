"""Run by the environment that holds the SDKs: reads streams with ``openai`` and prints what it read."""

import json
import sys

from openai import OpenAI


def chunks(client: OpenAI, route: str, body: dict) -> dict:
    """Read an answer of Chat Completions or of Completions."""
    reading = {"text": "", "output_tokens": None, "prompt_tokens": None, "finish": None}
    call = client.chat.completions.create if route == "chat" else client.completions.create
    needed = {name: body.pop(name) for name in ("model", "messages", "prompt") if name in body}
    body.pop("stream")
    try:
        for chunk in call(**needed, stream=True, extra_body=body):
            for choice in chunk.choices:
                delta = choice.delta if route == "chat" else None
                thought = (getattr(delta, "reasoning_content", None) or "") if delta else ""
                reading["text"] += thought + ((delta.content or "") if delta else choice.text)
                reading["finish"] = choice.finish_reason or reading["finish"]
            if usage := getattr(chunk, "usage", None):
                reading["output_tokens"], reading["prompt_tokens"] = usage.completion_tokens, usage.prompt_tokens
    except Exception as exception:  # noqa: BLE001  (any exception of the client is its reading of the answer)
        reading["error"] = str(exception)
    return reading


def responses(client: OpenAI, body: dict) -> dict:
    """Read an answer of Responses."""
    reading = {"text": "", "output_tokens": None, "prompt_tokens": None, "finish": None}
    needed = {name: body.pop(name) for name in ("model", "input")}
    body.pop("stream")
    try:
        for event in client.responses.create(**needed, stream=True, extra_body=body):
            if event.type in {"response.output_text.delta", "response.reasoning_text.delta"}:
                reading["text"] += event.delta
            elif event.type == "response.failed":
                reading["error"] = event.response.error.message
            elif event.type in {"response.completed", "response.incomplete"}:
                response = event.response
                incomplete = response.incomplete_details
                reading["finish"] = incomplete.reason if incomplete else response.status
                reading["output_tokens"] = response.usage.output_tokens
                reading["prompt_tokens"] = response.usage.input_tokens
    except Exception as exception:  # noqa: BLE001  (any exception of the client is its reading of the answer)
        reading["error"] = str(exception)
    return reading


def main() -> None:
    job = json.load(sys.stdin)
    client = OpenAI(base_url=f"{job['base_url']}/v1", api_key="none", max_retries=0, timeout=120)
    route = job["route"]
    read = (
        (lambda body: responses(client, body)) if route == "responses" else (lambda body: chunks(client, route, body))
    )
    json.dump([read(body) for body in job["bodies"]], sys.stdout)


main()
