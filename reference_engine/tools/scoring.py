"""How far an answer is from what this engine would say: teacher-forced, one answer at a time, one pass over each.

At every position of an answer the model sees the prompt and the answer's own tokens before it, so one difference does
not make all that follow differ. A position agrees where no other token was likelier. The end of a sequence is left out
of that choice unless the answer took it: engines that force a length either forbid it or go on behind it.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import torch

from reference_engine.attention.base import Span
from reference_engine.attention.torch_backend import TorchAttention
from reference_engine.engine.assembly import cache_layout, resolve_device
from reference_engine.errors import RequestError
from reference_engine.kv_cache.storage import allocate_storage
from reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from reference_engine.models.registry import build_model

NEAR_TIE_NATS = 0.2
"""A disagreement below this regret may be rounding: bf16 keeps eight bits, so the last rounding alone moves the
difference of two logits of 20 by up to 0.12, and the layers before it add theirs."""
_BLOCK_SIZE = 16  # tokens
_STEP_TOKENS = 512  # in one call of the model; bounds the logits, [512, vocab_size], whatever the answer's length


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer as an engine gave it; `logprobs` are the engine's own, one for each output token."""

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float] | None = None


class Difference(msgspec.Struct, frozen=True):
    """A position at which another token was likelier: `expected` instead of `token`, by `regret` nats."""

    position: int
    token: int
    expected: int
    regret: float


class Score(msgspec.Struct, frozen=True):
    """How one answer compares. Log-probabilities are natural, regrets are in nats.

    Attributes:
        id: of the sample.
        error: why it was not scored; everything else is then empty.
        tokens: positions compared.
        agreement: share of them at which the answer took the likeliest token.
        first_divergence: index of the first at which it did not, None where it always did.
        matched_prefix: tokens before that.
        mean_regret: mean over all positions of how much likelier the likeliest token was.
        max_regret: the largest.
        near_ties: disagreements with a regret below `NEAR_TIE_NATS`.
        first: the difference at `first_divergence`.
        worst: the one of the largest regret.
        mean_abs_logprob_diff: between the engine's log-probabilities and ours; None where it gave none.
        max_abs_logprob_diff: the largest.
    """

    id: str
    error: str | None = None
    tokens: int = 0
    agreement: float | None = None
    first_divergence: int | None = None
    matched_prefix: int = 0
    mean_regret: float | None = None
    max_regret: float | None = None
    near_ties: int = 0
    first: Difference | None = None
    worst: Difference | None = None
    mean_abs_logprob_diff: float | None = None
    max_abs_logprob_diff: float | None = None


class _Position(msgspec.Struct, frozen=True):
    """One position of an answer: `expected` is the likeliest token, and `regret` is 0 where the answer took it."""

    expected: int
    regret: float
    logprob: float


class Scorer:
    """Scores answers with one model.

    Args:
        checkpoint: of the model.
        dtype: of weights, activations and cache: ``float32``, ``bfloat16`` or ``float16``.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        CheckpointError: weights are missing or damaged.
        ConfigError: there is no such device here.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, device: str = "auto") -> None:
        self._config = checkpoint.config
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device = torch.device(resolve_device(device))
        self._stops = sorted(i for i in checkpoint.eos_token_ids if i < checkpoint.config.vocab_size)
        self._model = build_model(
            checkpoint.config,
            checkpoint.weights,
            max_positions=checkpoint.config.max_position_embeddings,
            dtype=self._dtype,
            device=self._device,
        )

    def score(self, sample: Sample) -> Score:
        """Compare one answer.

        Raises:
            RequestError: it is empty, too long for the model, or has tokens that the model does not know.
        """
        self._check(sample)
        positions = list(self._positions(sample))
        if not all(math.isfinite(position.regret) for position in positions):
            raise RequestError(f"the model's logits are not finite in {str(self._dtype).removeprefix('torch.')}")
        return _summed_up(sample, positions)

    def _check(self, sample: Sample) -> None:
        length, limit = len(sample.prompt_ids) + len(sample.output_ids), self._config.max_position_embeddings
        if not sample.prompt_ids or not sample.output_ids:
            raise RequestError("prompt_ids and output_ids must each hold a token")
        if length > limit:
            raise RequestError(f"prompt and output are {length} tokens, the model was made for {limit}")
        if sample.logprobs is not None and len(sample.logprobs) != len(sample.output_ids):
            raise RequestError(f"{len(sample.logprobs)} logprobs for {len(sample.output_ids)} output tokens")
        foreign = [i for i in (*sample.prompt_ids, *sample.output_ids) if not 0 <= i < self._config.vocab_size]
        if foreign:
            raise RequestError(f"the model has no token {foreign[0]}, its vocabulary is {self._config.vocab_size}")

    @torch.inference_mode()
    def _positions(self, sample: Sample) -> Iterator[_Position]:
        """Every position of the answer, in order; the cache holds what a step leaves for the next one."""
        tokens = [*sample.prompt_ids, *sample.output_ids]
        inputs, first_wanted = len(tokens) - 1, len(sample.prompt_ids) - 1
        blocks = range(-(-inputs // _BLOCK_SIZE))
        layout = cache_layout(self._config)
        attention = TorchAttention(
            allocate_storage(
                layout,
                num_blocks=[len(blocks)] * len(layout.groups),
                block_size=_BLOCK_SIZE,
                dtype=self._dtype,
                device=self._device,
            )
        )
        for start in range(0, inputs, _STEP_TOKENS):
            end = min(start + _STEP_TOKENS, inputs)
            wanted = range(max(start, first_wanted), end)
            logits = self._model.forward(
                self._tensor(tokens[start:end]),
                self._tensor(range(start, end)),
                attention.begin_step([Span([blocks] * len(layout.groups), start, end - start)]),
                self._tensor(range(wanted.start - start, wanted.stop - start)),
            )
            if wanted:
                yield from self._compared(logits.float(), self._tensor(tokens[wanted.start + 1 : end + 1]))

    def _compared(self, logits: torch.Tensor, taken: torch.Tensor) -> list[_Position]:
        """Logits [rows, vocab_size] against the tokens [rows] that the answer took."""
        logits = logits.log_softmax(dim=-1)
        mine = logits.gather(1, taken[:, None])[:, 0]
        anything, _ = logits.max(dim=-1)
        anything_token = logits.argmax(dim=-1)
        if self._stops:
            logits[:, self._stops] = float("-inf")
        no_stop, _ = logits.max(dim=-1)
        ended = torch.isin(taken, self._tensor(self._stops))
        expected = torch.where(ended, anything_token, logits.argmax(dim=-1))
        regret = torch.where(ended, anything, no_stop) - mine
        return [_Position(*row) for row in zip(expected.tolist(), regret.tolist(), mine.tolist(), strict=True)]

    def _tensor(self, values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device)


def _summed_up(sample: Sample, positions: list[_Position]) -> Score:
    differences = [
        Difference(i, sample.output_ids[i], position.expected, position.regret)
        for i, position in enumerate(positions)
        if position.regret > 0
    ]
    first = differences[0] if differences else None
    theirs = sample.logprobs
    off = [abs(a - b.logprob) for a, b in zip(theirs, positions, strict=True)] if theirs else []
    return Score(
        id=sample.id,
        tokens=len(positions),
        agreement=1 - len(differences) / len(positions),
        first_divergence=first.position if first else None,
        matched_prefix=first.position if first else len(positions),
        mean_regret=math.fsum(position.regret for position in positions) / len(positions),
        max_regret=max(position.regret for position in positions),
        near_ties=sum(difference.regret < NEAR_TIE_NATS for difference in differences),
        first=first,
        worst=max(differences, key=lambda difference: difference.regret, default=None),
        mean_abs_logprob_diff=math.fsum(off) / len(off) if off else None,
        max_abs_logprob_diff=max(off) if off else None,
    )


def score_lines(lines: Iterable[bytes], model: Path, dtype: str, device: str) -> Iterator[bytes]:
    """A line of JSON for each line of JSON: :class:`Score` for :class:`Sample`.

    An answer that cannot be scored gets a line with its ``error``; the others are scored.

    Raises:
        CheckpointError, ConfigError: the model or the device is at fault.
        RequestError: a line is no sample.
    """
    scorer = Scorer(open_checkpoint(model), dtype, device)
    for number, line in enumerate(lines, start=1):
        try:
            sample = msgspec.json.decode(line, type=Sample)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestError(f"line {number} is no sample: {error}") from error
        try:
            score = scorer.score(sample)
        except RequestError as error:
            score = Score(sample.id, str(error))
        yield msgspec.json.encode(score) + b"\n"
