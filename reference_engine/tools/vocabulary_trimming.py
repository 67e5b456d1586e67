"""Chooses the tokens whose rows a draft model's head keeps: the most frequent ones of a text.

All special tokens are kept, too, so that a draft can end an answer. See `speculation/draft_vocabulary.py`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.errors import ConfigError, RequestError
from bakeoff.reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from bakeoff.reference_engine.speculation.draft_vocabulary import FILE, DraftVocabulary, vocabulary_sha256
from bakeoff.reference_engine.tools.checkpoint_folder import whole_file
from bakeoff.reference_engine.tools.transformers_model import check_directory


def trim(folder: Path, rows: int, *, text: Path | None, say: Callable[[str], None]) -> None:
    """Writes `FILE` into the folder of a checkpoint, replacing an older one; nothing else there changes.

    Args:
        folder: checkpoint directory.
        rows: rows of the head to keep.
        text: UTF-8 file similar to the answers to draft; None for the standard input.
        say: called with a line of text.

    Raises:
        CheckpointError: the model cannot be read, or is a .gguf file.
        ConfigError: the head cannot keep so many rows.
        RequestError: the text cannot be read, or is empty.
    """
    check_directory(folder)
    checkpoint = open_checkpoint(folder)
    check_rows(checkpoint, rows)
    token_ids = checkpoint.tokenizer.encode(read_text(text), add_special_tokens=False)
    if not token_ids:
        raise RequestError("the text is empty; give one like the answers to draft")
    vocabulary = frequent_vocabulary(checkpoint, rows, [token_ids])
    write_draft_vocabulary(folder, vocabulary)
    say(f"wrote {folder / FILE}: {coverage_text(vocabulary, [token_ids])} of this text")


def check_rows(checkpoint: Checkpoint, rows: int) -> None:
    """Checks that a head can keep so many rows.

    Raises:
        ConfigError: fewer rows than special tokens, or more than all tokens.
    """
    least, most = max(1, len(_always_kept(checkpoint))), checkpoint.config.vocab_size
    if not least <= rows <= most:
        raise ConfigError(
            f"a trimmed vocabulary of this model has {least} tokens, the special ones, to {most}, not {rows}"
        )


def frequent_vocabulary(checkpoint: Checkpoint, rows: int, texts: Iterable[Sequence[int]]) -> DraftVocabulary:
    """The most frequent tokens of some texts, and all special ones.

    Args:
        checkpoint: of the draft model.
        rows: tokens to keep; `check_rows` accepts it.
        texts: token ids of each.
    """
    counts = Counter(token for text in texts for token in text)
    return DraftVocabulary(
        vocab_size=checkpoint.config.vocab_size,
        tokenizer_sha256=vocabulary_sha256(checkpoint.tokenizer),
        kept_token_ids=most_frequent(counts, rows, checkpoint.config.vocab_size, _always_kept(checkpoint)),
    )


def most_frequent(counts: Mapping[int, int], rows: int, vocab_size: int, always: Collection[int] = ()) -> list[int]:
    """Ascending ids of `always` and of the most frequent other tokens, `rows` in total.

    Of equally frequent tokens the lower id comes first: BPE numbers tokens in the order of its merges, so tokens that
    the text does not use are ranked by the training text of the tokenizer.
    """
    others = [token for token in range(vocab_size) if token not in always]
    others.sort(key=lambda token: -counts.get(token, 0))  # stable
    return sorted([*always, *others[: rows - len(always)]])


def coverage_text(vocabulary: DraftVocabulary, texts: Iterable[Sequence[int]]) -> str:
    """Share of some texts that the kept tokens cover, as text: no larger share of drafts can be right."""
    kept_ids = frozenset(vocabulary.kept_token_ids)
    is_kept = [token in kept_ids for text in texts for token in text]
    share = sum(is_kept) / max(1, len(is_kept))
    return f"{len(kept_ids):,} of {vocabulary.vocab_size:,} tokens, which are {share:.2%}"


def write_draft_vocabulary(folder: Path, vocabulary: DraftVocabulary) -> None:
    """Writes `FILE` atomically."""
    with whole_file(folder / FILE) as scratch:
        scratch.write_bytes(msgspec.json.encode(vocabulary))


def _always_kept(checkpoint: Checkpoint) -> frozenset[int]:
    """Special tokens, and those that end a sequence; none after the head's last row."""
    added = checkpoint.tokenizer.backend.get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special} | checkpoint.eos_token_ids
    return frozenset(token for token in special if token < checkpoint.config.vocab_size)
