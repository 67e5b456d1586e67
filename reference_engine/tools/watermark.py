"""Detection of a watermark: more green tokens in a text than chance explains. Needs the key, but no weights.

Kirchenbauer et al.: A Watermark for Large Language Models. ICML 2023, arXiv 2301.10226. The null hypothesis is a text
whose author does not know the lists: each token is green with probability gamma. That holds only for distinct pairs of
neighbours, so a repeated pair is counted once, as the paper proposes for repetitive texts.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.core.request import Watermark
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.tokenizer import open_tokenizer
from bakeoff.reference_engine.sampling.watermark import are_green


@dataclasses.dataclass(frozen=True, slots=True)
class Detection:
    """Evidence for a watermark.

    Attributes:
        scored_tokens: distinct pairs of a token and the one before it, T.
        green_tokens: those of them whose second token is green.
        z_score: (green_tokens - gamma T) / sqrt(T gamma (1 - gamma)); above 4, the paper's threshold, one text in
            30,000 without a watermark is taken for one with it.
        p_value: probability of such a z-score or a higher one without a watermark, by the normal distribution.
    """

    scored_tokens: int
    green_tokens: int
    z_score: float
    p_value: float


def detect(token_ids: Sequence[int], watermark: Watermark) -> Detection:
    """Counts green tokens; the first token of the text, whose predecessor is unknown, is not scored.

    Args:
        token_ids: of the text, by the tokenizer of the model that may have written it.
        watermark: its `gamma` and `key`; `delta` has no effect.

    Raises:
        RequestError: there are fewer than two tokens, or ids below 0.
    """
    if len(token_ids) < 2:
        raise RequestError(f"a text of {len(token_ids)} tokens has nothing to score; give at least two")
    if min(token_ids) < 0:
        raise RequestError(f"token id {min(token_ids)} is below 0")
    tokens = np.array(token_ids, np.int64)
    previous, scored = np.unique(np.stack([tokens[:-1], tokens[1:]]), axis=1)
    total, green = len(scored), int(are_green(watermark, previous, scored).sum())
    share = watermark.gamma
    z_score = (green - share * total) / math.sqrt(total * share * (1 - share))
    return Detection(total, green, z_score, math.erfc(z_score / math.sqrt(2)) / 2)


def detect_in_file(path: Path | None, model: Path, watermark: Watermark) -> Detection:
    """Detects a watermark in a UTF-8 text file, or in the standard input if there is no path.

    Args:
        path: of the text, without the prompt.
        model: the text is read with its tokenizer.
        watermark: see `detect`.

    Raises:
        CheckpointError, RequestError: the model or the text cannot be read, or the text is too short.
    """
    tokenizer = open_tokenizer(model)
    return detect(tokenizer.encode(read_text(path), add_special_tokens=False), watermark)
