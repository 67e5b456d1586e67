"""The prompts of the task families, as token ids in the model's chat format."""

import json
from pathlib import Path

from bakeoff.reference_engine.loading.tokenizer import Tokenizer

FAMILIES = ("chat", "code-editing", "maths", "rag", "summarise")
COPYING = ("code-editing", "rag")
"""Families whose answers repeat parts of the prompt."""
_FOLDER = Path(__file__).with_name("families")


def prompts_of(tokenizer: Tokenizer, family: str, count: int) -> list[list[int]]:
    """The first `count` prompts of a family."""
    lines = (_FOLDER / f"{family}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    texts = [tokenizer.render_chat(json.loads(line)["messages"]) for line in lines]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]
