"""A draft model's head without the rows of rare tokens: FR-Spec, Zhao et al., arXiv 2502.14856.

A small model spends most of its time in its head, one row for each token of the vocabulary, and few tokens make up most
of a text. A file beside the checkpoint, which stays whole, lists the kept rows. It is JSON because loaders, such as
vLLM's, take every `*.safetensors` file for weights. Only `Shadow.load` in `engine/executors.py` reads it; models that
are served or exit early ignore it.
"""

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from bakeoff.reference_engine.core.files import read_json
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.checkpoint import Checkpoint
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.speculation.residual import Distribution

FILE = "draft_vocabulary.json"
"""File name in the folder of a checkpoint."""

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_log = logging.getLogger(__name__)


class DraftVocabulary(msgspec.Struct, frozen=True):
    """The tokens that a draft model proposes; the content of `FILE`.

    Attributes:
        vocab_size: rows of the whole head.
        tokenizer_sha256: of the vocabulary that the ids belong to, see `vocabulary_sha256`.
        kept_token_ids: ascending, at least one.
    """

    vocab_size: int
    tokenizer_sha256: str
    kept_token_ids: list[int]

    def trimmed(self, checkpoint: Checkpoint) -> Checkpoint:
        """The same model with a head [kept tokens, hidden_size] of its own; its embedding stays whole."""
        _log.info("draft model: %d of %d rows of the head", len(self.kept_token_ids), self.vocab_size)
        is_tied = checkpoint.config.tie_word_embeddings
        return dataclasses.replace(
            checkpoint,
            config=dataclasses.replace(checkpoint.config, tie_word_embeddings=False),
            weights=_TrimmedHead(checkpoint.weights, _EMBEDDING if is_tied else _HEAD, self.kept_token_ids),
        )


class TokenMap:
    """Maps rows of a trimmed head to tokens.

    Args:
        vocabulary: lists the kept rows.
        device: of the logits.
    """

    def __init__(self, vocabulary: DraftVocabulary, device: torch.device) -> None:
        self._vocab_size = vocabulary.vocab_size
        self._places = np.array(vocabulary.kept_token_ids)
        self._token_ids = torch.tensor(vocabulary.kept_token_ids, device=device)

    def token_ids(self, rows: torch.Tensor) -> torch.Tensor:
        """Tokens of rows; both int64 [n] on the device."""
        return self._token_ids.index_select(0, rows)

    def distribution(self, of_rows: Distribution) -> Distribution:
        """Probabilities of all tokens [vocab_size] from those of the rows; a token without a row has 0."""
        probabilities = np.zeros(self._vocab_size)
        probabilities[self._places] = of_rows
        return probabilities


class _TrimmedHead:
    """A `WeightSource` whose head has a subset of the rows of a stored matrix."""

    def __init__(self, source: WeightSource, stored: str, token_ids: Sequence[int]) -> None:
        self._source, self._stored, self._token_ids = source, stored, torch.tensor(token_ids)

    def names(self) -> Sequence[str]:
        return list(dict.fromkeys([*self._source.names(), _HEAD]))

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        if name != _HEAD:
            return self._source.get(name, dtype, device)
        whole = self._source.get(self._stored, dtype, device)
        return whole.index_select(0, self._token_ids.to(whole.device))

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        if name != _HEAD:
            return self._source.get_quantised(name)
        whole = self._source.get_quantised(self._stored)
        return None if whole is None else whole.rows(self._token_ids)


def read_draft_vocabulary(checkpoint: Checkpoint) -> DraftVocabulary | None:
    """Reads `FILE` in the folder of a checkpoint; None without that file, and for a .gguf file.

    Raises:
        CheckpointError: the file is damaged, or belongs to another vocabulary.
    """
    file = checkpoint.path / FILE
    if not file.exists():
        return None
    try:
        vocabulary = msgspec.convert(read_json(file), DraftVocabulary)
    except msgspec.ValidationError as error:
        raise _unusable(file, str(error)) from error
    kept_ids, size = vocabulary.kept_token_ids, checkpoint.config.vocab_size
    if vocabulary.vocab_size != size:
        raise _unusable(file, f"it is of a vocabulary of {vocabulary.vocab_size} tokens, the model's has {size}")
    if vocabulary.tokenizer_sha256 != vocabulary_sha256(checkpoint.tokenizer):
        raise _unusable(file, "it is of another tokenizer than the model's")
    if not kept_ids:
        raise _unusable(file, "it keeps no token")
    if any(first >= second for first, second in itertools.pairwise(kept_ids)):
        raise _unusable(file, "its kept_token_ids do not increase")
    if kept_ids[0] < 0 or kept_ids[-1] >= size:
        raise _unusable(file, f"its kept_token_ids are not all between 0 and {size - 1}")
    return vocabulary


def vocabulary_sha256(tokenizer: Tokenizer) -> str:
    """Hash of the tokens and their ids."""
    tokens = sorted(tokenizer.backend.get_vocab().items())
    return hashlib.sha256(msgspec.json.encode(tokens)).hexdigest()


def _unusable(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{file}: {why}; write it again with bakeoff models trim {file.parent}, or delete it")
