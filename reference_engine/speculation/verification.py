"""Verifies drafts: sample and compare, or residual rejection (`residual.py`).

To compare, every row of a verification is sampled as if its drafts were the answer so far, with the request's own
random number for that position. A draft is accepted while it equals the sampled token, so the answer is that of the
engine without drafts, token for token, with any sampling parameters.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch

from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.sampling import LaterPlace, Place, Sampler
from bakeoff.reference_engine.sampling.sampler import Chooser, choose_on_host
from bakeoff.reference_engine.speculation.residual import Distribution, accept_or_redraw

T = TypeVar("T")


def places_of(sequences: Sequence[Request], drafts: Sequence[Sequence[int]]) -> list[Place]:
    """Where the rows of a verification are sampled: after each sequence's last token and after each of its drafts."""
    places: list[Place] = []
    for sequence, guesses in zip(sequences, drafts, strict=True):
        first = sequence.num_sampled
        places.append(sequence)
        places += [LaterPlace(sequence.sampling, first + place) for place in range(1, len(guesses) + 1)]
    return places


def split(values: Sequence[T], drafts: Sequence[Sequence[int]]) -> list[Sequence[T]]:
    """Splits values of all drafts, in order of sequences, into the parts of each sequence."""
    parts: list[Sequence[T]] = []
    start = 0
    for guesses in drafts:
        parts.append(values[start : start + len(guesses)])
        start += len(guesses)
    return parts


def accepted(tokens: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[tuple[SampledToken, ...]]:
    """The new tokens of each sequence.

    Args:
        tokens: sampled at `places_of`.
        drafts: of each sequence.

    Returns:
        The accepted drafts and the token after them, which is at least one token.
    """
    results: list[tuple[SampledToken, ...]] = []
    start = 0
    for guesses in drafts:
        count = 0
        while count < len(guesses) and tokens[start + count] == guesses[count]:
            count += 1
        results.append(tuple(map(SampledToken, tokens[start : start + count + 1])))
        start += len(guesses) + 1
    return results


def verify_on_host(
    logits: torch.Tensor,
    sequences: Sequence[Request],
    drafts: Sequence[Sequence[int]],
    sampler: Sampler,
    origins: Sequence[Sequence[Distribution | None]] | None = None,
) -> list[tuple[SampledToken, ...]]:
    """The same if a token depends on those before it, if more than the token is reported, or with residual rejection.

    Rows are sampled place by place, so that grammars and histories see accepted drafts only.

    Args:
        logits: [rows of all sequences, vocab_size].
        sequences: each has a row after its last token and one after each draft.
        drafts: of each sequence.
        sampler: keeps grammars and histories.
        origins: the distribution of each draft, for residual rejection; None to sample and compare.
    """
    firsts = [number + sum(map(len, drafts[:number])) for number in range(len(drafts))]
    results: list[list[SampledToken]] = [[] for _ in sequences]
    lengths = [len(sequence.token_ids) for sequence in sequences]
    going, place = list(range(len(sequences))), 0
    try:
        while going:
            rows = torch.tensor([firsts[number] + place for number in going], device=logits.device)
            rule = None if origins is None else _residual_rule(going, place, drafts, origins)
            sampled = sampler.sample(logits.index_select(0, rows), [sequences[number] for number in going], rule)
            still: list[int] = []
            for number, token in zip(going, sampled, strict=True):
                results[number].append(token)
                sequence, guesses = sequences[number], drafts[number]
                is_end = token.token_id in sequence.sampling.stop_token_ids
                if place < len(guesses) and token.token_id == guesses[place] and not is_end:
                    sequence.token_ids.append(token.token_id)  # during this call
                    still.append(number)
            going, place = still, place + 1
    finally:
        for sequence, length in zip(sequences, lengths, strict=True):
            del sequence.token_ids[length:]
    return [tuple(tokens) for tokens in results]


def _residual_rule(
    numbers: Sequence[int],
    place: int,
    drafts: Sequence[Sequence[int]],
    origins: Sequence[Sequence[Distribution | None]],
) -> Chooser:
    """Chooses the tokens of some sequences at one place after their last token.

    Args:
        numbers: of the sequences.
        place: 0 after the last token, 1 after the first draft.
        drafts: of all sequences.
        origins: of all drafts.
    """

    def choose(scores: torch.Tensor, requests: Sequence[Request]) -> list[int]:
        tokens = choose_on_host(scores, requests)
        for row, number in enumerate(numbers):
            origin = origins[number][place] if place < len(origins[number]) else None
            if origin is not None:
                tokens[row] = accept_or_redraw(scores[row], requests[row], drafts[number][place], origin)
        return tokens

    return choose
