"""A checkpoint folder with a real tokenizer and no weights: enough for traffic."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_TEXT = [
    "the quick brown fox jumps over the lazy dog while seven wizards quietly measure boxes of frozen daffodils",
    "every engine answers requests with tokens and each token arrives at some time that somebody has to write down",
]


def tiny_tokenizer(folder: Path) -> Path:
    """Write ``tokenizer.json`` (byte-level BPE) and a chat template into ``folder``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(_TEXT * 20, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    return folder
