"""Checkpoint folders with small tokenizers, trained on a page of text, with the structure of real ones."""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = "{% for message in messages %}User: {{ message['content'] }}\nAssistant:{% endfor %}"
"""No special token separates template and content, so tokens may merge across the edge."""

LESSON = """
The old lighthouse keeper writes a short note before every night shift. He measures the water, repairs the broken
meter and keeps a careful record of the weather, because the harbour office wants to understand the numbers. Although
nobody had asked for it, the youngest apprentice wrote a report about the training schedule in 2024, with seven
practical examples and 40 percent less effort than last year. Explain to a new visitor how the railway museum pays for
the winter heating, and list the risks of a simple plan. The village council argues about the rules of the contest,
while the accounting team carefully checks the weekly budget. A patient gardener would like to replace the irrigation,
even when the network is down. Tell me the history of the city library, step by step, from 9:30 until late in the
afternoon. Our delivery drivers have forgotten the translation of the manual; two competing proposals describe the
spare parts list. If the weather allows it, a visiting scientist can explain the results of the survey.
"""


def checkpoint(
    folder: Path,
    *,
    digits: bool = False,
    bare: bool = False,
    template: str | None = CHATML,
    merges: int = 400,
    more: str = "",
    **config: object,
) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json.

    Args:
        folder: made if needed.
        digits: every digit is a token of its own, as in SmolLM2.
        bare: words are tokens without the space before them too, as in every large vocabulary.
        template: the chat template; None for a base model.
        merges: learned pairs; 0 leaves bytes only, without any single-token word.
        more: further text to learn from.
        config: further entries of tokenizer_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trained(digits=digits, bare=bare, merges=merges, more=more).save(str(folder / "tokenizer.json"))
    entries = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, **config}
    if template is not None:
        entries["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(entries), encoding="utf-8")
    return folder


def trained(*, digits: bool = False, bare: bool = False, merges: int = 400, more: str = "") -> tokenizers.Tokenizer:
    """Byte-level BPE of ``LESSON``; by default it puts a special token before each text."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    steps = [pre_tokenizers.Digits(individual_digits=True), byte_level] if digits else [byte_level]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + len(alphabet) + merges,
        initial_alphabet=alphabet,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        show_progress=False,
    )
    words = "\n".join(LESSON.split())
    tokenizer.train_from_iterator([LESSON, more, *([words] if bare else [])], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))]
    )
    return tokenizer
