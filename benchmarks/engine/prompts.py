"""Real prompts: those of `prompts.json`, and passages of this project's documentation."""

import json
from pathlib import Path

from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
PROMPTS = Path(__file__).with_name("prompts.json")
SHORTEST, LONGEST = 5, 400  # tokens of a passage of the documentation


def read_prompts(model: str, count: int) -> list[list[int]]:
    """Token ids, long and short prompts side by side, so that every batch mixes prefill chunks with decodes."""
    tokenizer = open_checkpoint(Path(model)).tokenizer
    texts = json.loads(PROMPTS.read_text(encoding="utf-8"))[:count]
    prompts = [
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": entry["text"]}]))
        if entry["kind"] == "chat"
        else tokenizer.encode(entry["text"])
        for entry in texts
    ]
    prompts = sorted(prompts + passages(tokenizer, count - len(prompts)), key=len)
    return [prompt for start in range(4) for prompt in prompts[start::4]]


def passages(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Passages from all over the documentation, each from the start of a paragraph; lengths grow geometrically."""
    paragraphs, prompts = text().split("\n\n"), list[list[int]]()
    for number in range(count):
        length = round(SHORTEST * (LONGEST / SHORTEST) ** (number / max(1, count - 1)))
        start = number * len(paragraphs) // count
        rest = "\n\n".join(paragraphs[start:] + paragraphs[:start])
        prompts.append(tokenizer.encode(rest[: 8 * length])[:length])  # a token has about four characters
        assert len(prompts[-1]) == length
    return prompts


def text() -> str:
    """This project's documentation: some thousand words that the model was not trained on."""
    return "\n\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
