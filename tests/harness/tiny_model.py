"""A tiny Llama with SmolLM2's own tokenizer and template: prompts are real, and a step costs a millisecond."""

import contextlib
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bakeoff.engines import EngineSpec, Model, engine, launched, pick_port

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def tiny_model(folder: Path, tokenizer: Path) -> Path:
    """Write the checkpoint."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16_384,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    return folder


@contextlib.asynccontextmanager
async def tiny_engine(folder: Path, log: Path, **settings: Any) -> AsyncGenerator[str]:
    """Serve it by the reference engine; ``settings`` are shared ones or its own options. Yields the address."""
    usual = {"dtype": "float32", "max_model_len": 16_384, "threads": 1, "num_blocks": 20_000}
    merged: dict[str, Any] = {**usual, **settings}
    spec = {name: value for name, value in merged.items() if name in EngineSpec.__struct_fields__}
    own = {name: value for name, value in merged.items() if name not in spec}
    made = engine("reference", Model("tiny", str(folder)), own, EngineSpec(**spec))
    launch = made.launch(pick_port())
    assert launch is not None
    async with launched(launch, log) as server:
        yield server.base_url
