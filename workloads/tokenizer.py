"""The model's own tokenizer and chat template, so that lengths are counted as the engine counts them."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import tokenizers

from bakeoff.workloads.chat_template import ChatTemplate
from bakeoff.workloads.errors import BadTokenizer, NoTokenizer

_POINTER = b"version https://git-lfs"


class Tokenizer:
    """Wraps ``tokenizer.json`` and the chat template of ``tokenizer_config.json``.

    Args:
        folder: a Hugging Face checkpoint folder.

    Attributes:
        folder: as given.

    Raises:
        NoTokenizer: the folder has no ``tokenizer.json``.
        BadTokenizer: that file is not a tokenizer.
    """

    is_exact: ClassVar[bool] = True
    """Whether token counts equal the engine's."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise NoTokenizer(f"{folder} has no tokenizer.json; give the folder of the model's tokenizer")
        self.folder = folder
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no narrower one
            reason = " ".join(str(error).split())
            raise BadTokenizer(f"{file} is not a tokenizer: {reason}{_unfetched(file)}") from error
        self._tokenizer.no_truncation()  # some checkpoints store the truncation of their training; engines ignore it
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without adding special tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a completion's prompt, including the tokens that the model puts before every text."""
        return self._tokenizer.encode(text, add_special_tokens=True).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, including special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def count(self, text: str) -> int:
        """Number of tokens in plain text."""
        return len(self.encode(text))

    def starts(self, text: str) -> list[int]:
        """Position of the first character of each token in plain text."""
        return [start for start, _ in self._tokenizer.encode(text, add_special_tokens=False).offsets]

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Tokens that are always split off, wherever they appear in a text, longest first.

        Empty if a special token absorbs adjacent whitespace or is matched in normalised text, because the text before
        it is then not encoded independently of what follows.
        """
        tokens = list(self._tokenizer.get_added_tokens_decoder().values())
        plain = str(self._tokenizer.normalizer) in {"None", "Sequence(normalizers=[])"}
        if any(
            token.lstrip or token.rstrip or token.single_word or (token.normalized and not plain) for token in tokens
        ):
            return ()
        return tuple(sorted((str(token.content) for token in tokens), key=lambda text: (-len(text), text)))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of :attr:`special_tokens`."""
        return frozenset(i for token in self.special_tokens if (i := self._tokenizer.token_to_id(token)) is not None)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token and its id, without special tokens."""
        special = {str(token) for token in self._tokenizer.get_added_tokens_decoder().values()}
        return {token: i for token, i in self._tokenizer.get_vocab().items() if token not in special}

    def render_chat(self, messages: Sequence[dict[str, Any]], tools: list[Any] | None = None) -> str:
        """Render ``messages``, and the ``tools`` offered, with the chat template, up to the beginning of the answer.

        Raises:
            NoTokenizer: the checkpoint has no chat template.
            BadTokenizer: the template cannot be read, or fails.
        """
        return self._chat_template.render(messages, tools)

    @cached_property
    def _config(self) -> dict[str, Any]:
        file = self.folder / "tokenizer_config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except (ValueError, RecursionError) as error:
            raise BadTokenizer(f"{file} is not JSON: {error}{_unfetched(file)}") from error
        return config if isinstance(config, dict) else {}

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate(self.folder, self._config)


def _unfetched(file: Path) -> str:
    """What to do about the pointer of a large file; nothing if it is none."""
    with file.open("rb") as opened:
        return "; it is the pointer of a large file: run git lfs pull" if opened.read(64).startswith(_POINTER) else ""
