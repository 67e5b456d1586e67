"""Run by the environment that holds the SDKs: reads streams with ``openai`` and prints what it read."""

import json
import sys

from openai import OpenAI


def chunks(client: OpenAI, route: str, body: dict) -> dict:
    """An answer of chat or of completions."""
    made = {"text": "", "output_tokens": None, "prompt_tokens": None, "finish": None}
    call = client.chat.completions.create if route == "chat" else client.completions.create
    needed = {name: body.pop(name) for name in ("model", "messages", "prompt") if name in body}
    body.pop("stream")
    try:
        for chunk in call(**needed, stream=True, extra_body=body):
            for choice in chunk.choices:
                delta = choice.delta if route == "chat" else None
                thought = (getattr(delta, "reasoning_content", None) or "") if delta else ""
                made["text"] += thought + ((delta.content or "") if delta else choice.text)
                made["finish"] = choice.finish_reason or made["finish"]
            if usage := getattr(chunk, "usage", None):
                made["output_tokens"], made["prompt_tokens"] = usage.completion_tokens, usage.prompt_tokens
    except Exception as caught:  # noqa: BLE001  (whatever its client raises is what it made of the answer)
        made["error"] = str(caught)
    return made


def responses(client: OpenAI, body: dict) -> dict:
    """An answer of Responses."""
    made = {"text": "", "output_tokens": None, "prompt_tokens": None, "finish": None}
    needed = {name: body.pop(name) for name in ("model", "input")}
    body.pop("stream")
    try:
        for event in client.responses.create(**needed, stream=True, extra_body=body):
            if event.type in {"response.output_text.delta", "response.reasoning_text.delta"}:
                made["text"] += event.delta
            elif event.type == "response.failed":
                made["error"] = event.response.error.message
            elif event.type in {"response.completed", "response.incomplete"}:
                response = event.response
                made["finish"] = response.incomplete_details.reason if response.incomplete_details else response.status
                made["output_tokens"] = response.usage.output_tokens
                made["prompt_tokens"] = response.usage.input_tokens
    except Exception as caught:  # noqa: BLE001  (whatever its client raises is what it made of the answer)
        made["error"] = str(caught)
    return made


def main() -> None:
    job = json.load(sys.stdin)
    client = OpenAI(base_url=f"{job['base_url']}/v1", api_key="none", max_retries=0, timeout=120)
    route = job["route"]
    read = (
        (lambda body: responses(client, body)) if route == "responses" else (lambda body: chunks(client, route, body))
    )
    json.dump([read(body) for body in job["bodies"]], sys.stdout)


main()
