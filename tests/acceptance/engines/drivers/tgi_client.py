"""Run by the environment that holds text-generation: reads streams with ``AsyncClient`` and prints what it read."""

import asyncio
import json
import sys

from text_generation import AsyncClient

TIMEOUT_S = 120
"""Limit on a whole stream; the client's default of 10 s is too short for long streams."""


async def read(client: AsyncClient, body: dict) -> dict:
    """Read one answer as the client's documentation says: special tokens are no text."""
    texts, ids, details, error, generated_text = [], [], None, None, None
    max_tokens = body["parameters"]["max_new_tokens"]
    try:
        async for response in client.generate_stream(body["inputs"], max_new_tokens=max_tokens):
            ids.append(response.token.id)
            texts.append("" if response.token.special else response.token.text)
            details, generated_text = response.details, response.generated_text
    except Exception as exception:  # noqa: BLE001  (any exception of the client is its reading of the answer)
        error = str(exception)
    text = "".join(texts)
    if error is None and generated_text != text:
        error = f"its tokens say {text!r}, its generated_text {generated_text!r}"
    return {
        "text": text,
        "ids": ids or None,
        "output_tokens": details and details.generated_tokens,
        "finish": details and details.finish_reason.value,
        "error": error,
    }


async def main() -> None:
    job = json.load(sys.stdin)
    client = AsyncClient(job["base_url"], timeout=TIMEOUT_S)
    json.dump([await read(client, body) for body in job["bodies"]], sys.stdout)


asyncio.run(main())
