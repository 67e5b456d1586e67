"""Run by the environment that holds text-generation: reads streams with ``AsyncClient`` and prints what it read."""

import asyncio
import json
import sys

from text_generation import AsyncClient

TIMEOUT_S = 120
"""Of the whole stream; its default of 10 s cuts longer ones off."""


async def read(client: AsyncClient, body: dict) -> dict:
    """One answer, as its documents say to read it: special tokens are no text."""
    texts, ids, details, error, whole = [], [], None, None, None
    wanted = body["parameters"]["max_new_tokens"]
    try:
        async for said in client.generate_stream(body["inputs"], max_new_tokens=wanted):
            ids.append(said.token.id)
            texts.append("" if said.token.special else said.token.text)
            details, whole = said.details, said.generated_text
    except Exception as caught:  # noqa: BLE001  (whatever its client raises is what it made of the answer)
        error = str(caught)
    text = "".join(texts)
    if error is None and whole != text:
        error = f"its tokens say {text!r}, its generated_text {whole!r}"
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
