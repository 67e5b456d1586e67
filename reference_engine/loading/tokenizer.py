"""Tokenizer and chat template of a checkpoint. Imports torch only to open a .gguf file."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from bakeoff.reference_engine.core.config import LoadFormatName
from bakeoff.reference_engine.core.files import check_model_path, read_json
from bakeoff.reference_engine.errors import CheckpointError, RequestError
from bakeoff.reference_engine.loading.chat_template import ChatTemplate
from bakeoff.reference_engine.loading.gguf_tokenizer import build_tokenizer, special_token_names

_INLINE_CHARACTERS = 2_000  # tokenising fewer (about 0.2 ms) costs less than handing them to a thread
_CHARACTERS_PER_TOKEN = 8  # twice as many as in most texts
_CUT_TOKENS = 64
BROKEN = "\ufffd"  # what decoding returns for bytes that form no complete character
_CONFIG_NAME = "tokenizer_config.json"
_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A checkpoint's tokenizer. Immutable but for a cache, so thread-safe.

    Args:
        backend: from the `tokenizers` library.
        special_tokens: `bos_token`, `eos_token`, … and their text.
        chat_template: Jinja source, or None for a base model.
    """

    def __init__(self, backend: FastTokenizer, special_tokens: Mapping[str, str], chat_template: str | None) -> None:
        self.backend = backend
        self.special_tokens: dict[str, str] = dict(special_tokens)
        self._texts = tuple(_TokenTexts(backend, skip_special_tokens=skip) for skip in (False, True))
        self._bytes = _TokenBytes(self)
        self._template = None if chat_template is None else ChatTemplate(chat_template, special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The template's source, None for a base model."""
        return None if self._template is None else self._template.source

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token; None if the checkpoint names none."""
        text = self.special_tokens.get("eos_token")
        return None if text is None else self.backend.token_to_id(text)

    @property
    def is_byte_level(self) -> bool:
        """Whether a token's text is that of its bytes, as in GPT-2; other decoders also look at neighbouring tokens."""
        return isinstance(self.backend.decoder, decoders.ByteLevel)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; blocks the calling thread, but not the interpreter lock."""
        # encode_batch releases the interpreter lock in Rust, encode does not: other threads can run meanwhile.
        return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    async def encode_off_loop(
        self, texts: Sequence[str], *, most: int, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Token ids of each text; long or many texts go to a worker thread, so that the event loop can run.

        Args:
            texts: to encode.
            most: tokens that a text may have. Longer texts are refused after about as many, since encoding a text
                takes about 250 bytes of memory for each of its bytes.
            add_special_tokens: whether to add the tokens that the model puts before every text.

        Raises:
            RequestError: a text has more tokens.
        """
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            return [self.backend.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]
        return await asyncio.to_thread(
            lambda: [self._encode_at_most(text, most, add_special_tokens=add_special_tokens) for text in texts]
        )

    def _encode_at_most(self, text: str, most: int, *, add_special_tokens: bool) -> list[int]:
        """Encodes ever longer beginnings of a long text, of which each shows whether the text has too many tokens."""
        beginning = _CHARACTERS_PER_TOKEN * most
        while beginning < len(text):
            # Where it is cut, a beginning can have a few tokens that the text does not have.
            if len(self.encode(text[:beginning], add_special_tokens=add_special_tokens)) > most + _CUT_TOKENS:
                raise RequestError(
                    f"the prompt has more than {most} tokens, the maximum model length; shorten the prompt",
                    param="prompt",
                    code="context_length_exceeded",
                )
            beginning *= 4
        return self.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; invalid UTF-8 becomes U+FFFD."""
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_texts(self, *, skip_special_tokens: bool = True) -> Mapping[int, str]:
        """The result of `decode` for single tokens, each decoded once."""
        return self._texts[skip_special_tokens]

    @property
    def token_bytes(self) -> Mapping[int, bytes]:
        """The bytes of single tokens in UTF-8, each found once; those of a part of a character are its own."""
        return self._bytes

    def is_special(self, text: str) -> bool:
        """Whether a text is a special token, which `skip_special_tokens` leaves out."""
        token_id = self.backend.token_to_id(text)
        return token_id is not None and not self.token_texts(skip_special_tokens=True)[token_id]

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:  # noqa: ANN401 (Jinja)
        """Renders the prompt text of a chat.

        Raises:
            RequestError: the checkpoint has no chat template, or its template refuses the messages.
        """
        if self._template is None:
            raise RequestError("this model has no chat template: use /v1/completions", param="messages")
        return self._template.render(messages, **variables)


class _TokenBytes(dict[int, bytes]):
    """Filled on access."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        text = self._tokenizer.token_texts(skip_special_tokens=False)[token_id]
        self[token_id] = found = self._part_of_character(token_id, text) if BROKEN in text else text.encode()
        return found

    def _part_of_character(self, token_id: int, text: str) -> bytes:
        """Bytes of a token that has no text of its own."""
        name = self._tokenizer.backend.id_to_token(token_id) or ""
        if self._tokenizer.is_byte_level and all(character in _BYTE_OF for character in name):
            return bytes(_BYTE_OF[character] for character in name)
        byte = _BYTE_TOKEN.fullmatch(name)
        return bytes.fromhex(byte[1]) if byte else text.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """The byte for which each character stands in a byte-level vocabulary.

    Printable characters of Latin-1 stand for themselves, and those from U+0100 on for the other bytes in turn (A.
    Radford et al.: *Language Models are Unsupervised Multitask Learners*, 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte in vocabularies that fall back on bytes, as those made by SentencePiece."""


class _TokenTexts(dict[int, str]):
    """Filled on access: a subscript of a dict is the cheapest look-up there is."""

    def __init__(self, backend: FastTokenizer, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self._backend = backend
        self._skip_special_tokens = skip_special_tokens

    def __missing__(self, token_id: int) -> str:
        text = self[token_id] = self._backend.decode([token_id], skip_special_tokens=self._skip_special_tokens)
        return text


def open_tokenizer(path: Path, load_format: LoadFormatName = "auto") -> Tokenizer:
    """Opens only the tokenizer of a checkpoint, as `open_checkpoint` does.

    Raises:
        CheckpointError: the path is not a model (see `check_model_path`), or the tokenizer's files are damaged.
    """
    check_model_path(path)
    if path.is_dir():
        return tokenizer_of_directory(path, load_format)
    from bakeoff.reference_engine.loading.gguf import GgufFile  # noqa: PLC0415 (imports torch)

    return tokenizer_from_gguf(GgufFile(path).metadata, str(path))


def tokenizer_of_directory(path: Path, load_format: LoadFormatName = "auto") -> Tokenizer:
    """The tokenizer of a checkpoint directory, with its chat template; `dummy` weights need none.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    if load_format == "dummy" and not (path / "tokenizer.json").exists():
        return number_tokenizer(int(read_json(path / "config.json").get("vocab_size", 1)))
    config_file, template_file = path / _CONFIG_NAME, path / "chat_template.jinja"
    config = read_json(config_file) if config_file.exists() else {}
    try:
        template = template_file.read_text(encoding="utf-8") if template_file.exists() else None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{template_file} is not UTF-8 ({error}); fetch it again") from error
    return tokenizer_from_directory(path, config, template)


def tokenizer_from_directory(directory: Path, config: Mapping[str, Any], template_file: str | None) -> Tokenizer:
    """Reads tokenizer.json; `config` is the decoded tokenizer_config.json, `template_file` the text of *.jinja."""
    path = directory / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing; only checkpoints with a fast tokenizer (tokenizer.json) are supported"
        )
    try:
        backend = FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every parse error
        raise CheckpointError(f"{path} cannot be parsed ({error}); fetch it again") from error
    backend.no_padding()
    backend.no_truncation()
    special = {role: _token_text(role, config[role], directory) for role in _SPECIAL_ROLES if config.get(role)}
    return Tokenizer(backend, special, template_file or _default_template(config.get("chat_template"), directory))


def number_tokenizer(vocab_size: int) -> Tokenizer:
    """A placeholder without a vocabulary: token 17 is the text ``17``, and blanks separate tokens."""
    vocabulary = {str(token_id): token_id for token_id in range(vocab_size)}
    backend = FastTokenizer(models.WordLevel(vocabulary, unk_token="0"))  # noqa: S106 (a token of text)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, {}, chat_template=None)


def tokenizer_from_gguf(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """Rebuilds a GGUF file's tokenizer; raises CheckpointError if it cannot be rebuilt exactly."""
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(build_tokenizer(metadata, where), special_token_names(metadata), template)


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


def _token_text(role: str, value: Any, directory: Path) -> str:  # noqa: ANN401 (any JSON value)
    text = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(text, str):
        raise CheckpointError(f"{directory / _CONFIG_NAME}: {role} must be text or an object with its text as content")
    return text


def _default_template(value: Any, directory: Path) -> str | None:  # noqa: ANN401 (any JSON value)
    """Old checkpoints list several named templates; the one for plain chat is called `default`."""
    if value is None or isinstance(value, str):
        return value
    try:
        entries = msgspec.convert(value, list[_NamedTemplate])
    except msgspec.ValidationError:
        problem = "chat_template must be text or a list of named templates"
        raise CheckpointError(f"{directory / _CONFIG_NAME}: {problem}") from None
    return next((entry.template for entry in entries if entry.name == "default"), None)
