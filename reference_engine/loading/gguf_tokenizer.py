"""Rebuilds a Hugging Face tokenizer from the vocabulary and merges in a GGUF file.

Only byte-level BPE (`tokenizer.ggml.model = gpt2`) can be rebuilt exactly. The file names its pre-tokenizer
(`tokenizer.ggml.pre`) but does not store it; names and meanings are llama.cpp's (`src/llama-vocab.cpp`).
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bakeoff.reference_engine.errors import CheckpointError

CONTROL_TOKEN = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL
USER_DEFINED_TOKEN = 4  # LLAMA_TOKEN_TYPE_USER_DEFINED

PRE_TOKENIZERS = ("smollm", "llama-bpe", "qwen2", "gpt-2")
"""One name for each set of rules that `build_tokenizer` knows."""
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3"})
_QWEN2 = frozenset({"qwen2", "deepseek-r1-qwen"})
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def build_tokenizer(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """Builds the `tokenizers` object of a GGUF file.

    Raises:
        CheckpointError: the tokenizer model is not gpt2, or the pre-tokenizer is unknown.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(f"{where}: GGUF tokenizer {model!r} cannot be rebuilt, only byte-level BPE ('gpt2') can")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Llama 3 encodes words of its vocabulary as one token even if no chain of merges produces them.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _LLAMA3))
    if pre in _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, where)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, tokens, metadata, adds_bos=pre in _LLAMA3)
    return tokenizer


def _pre_tokenizer(pre: str, where: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in {"default", "gpt-2"}:
        return byte_level
    if pre in {"smollm", "starcoder", "refact", "command-r"}:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre in _LLAMA3 | _QWEN2:
        pattern = Regex(_LLAMA3_SPLIT if pre in _LLAMA3 else _QWEN2_SPLIT)
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise CheckpointError(f"{where}: GGUF pre-tokenizer {pre!r} is not known; use the safetensors checkpoint")


def _add_special_tokens(
    tokenizer: Tokenizer, tokens: list[str], metadata: Mapping[str, Any], *, adds_bos: bool
) -> None:
    """Adds control and user-defined tokens; `adds_bos` is llama.cpp's default if the file does not say."""
    types: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    for token, kind in zip(tokens, types, strict=False):
        if kind == CONTROL_TOKEN:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED_TOKEN:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) and bos is not None:
        text = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{text} $A", pair=f"{text} $A {text} $B", special_tokens=[(text, bos)]
        )


def special_token_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens that the file names: `bos_token`, `eos_token`, `unk_token`, `pad_token`."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in keys.items()}
    return {role: tokens[index] for role, index in ids.items() if index is not None}
