"""Teacher-forced evaluation: how likely a model finds texts and answers that are given, one pass over each.

At every position the model sees the given tokens before it, so one difference does not make all that follow differ. A
text is computed in steps, and what a step sees of earlier ones comes out of the KV cache.

Scores compare an engine's answers with this model. A position agrees where no other token was likelier. The end of a
sequence is left out of that choice unless the answer took it: engines that force a length either forbid it or go on
behind it.

Perplexity, exp of the mean of -ln p(token | the tokens before it), shows what rounding or dropping keys and values
costs. Its steps are small, so that a token finds nearly all of its past as a request's later steps would: rounded, out
of the window, dropped.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from torch.nn.functional import cross_entropy

from reference_engine.ablations.heavy_hitter import Census, HeavyHitterAttention
from reference_engine.attention.torch_backend import TorchAttention
from reference_engine.engine.assembly import (
    attention_of,
    cache_layout,
    demand_of,
    resolve_config,
    resolve_device,
    storage_of,
)
from reference_engine.engine.config import EngineConfig
from reference_engine.errors import ConfigError, RequestError
from reference_engine.kv_cache.storage import allocate_storage
from reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from reference_engine.models.registry import build_model
from reference_engine.tools.text_cache import TextCache

NEAR_TIE_NATS = 0.2
"""A disagreement below this regret may be rounding: bf16 keeps eight bits, so the last rounding alone copies the
difference of two logits of 20 by up to 0.12, and the layers before it add theirs."""
STEP_TOKENS = 32
"""Tokens in one step of a perplexity: few against any window or budget, yet enough to share the reading of the model's
weights."""
_BLOCK_SIZE = 16  # tokens, of scores
_SCORE_STEP_TOKENS = 512  # bounds the logits, [512, vocab_size], whatever the answer's length


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
        self._layout = cache_layout(checkpoint.config)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device = torch.device(resolve_device(device))
        self._stops = sorted(i for i in checkpoint.eos_token_ids if i < checkpoint.config.vocab_size)
        self._model = build_model(
            checkpoint.config,
            checkpoint.weights,
            max_positions=checkpoint.config.max_length,
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
        length, limit = len(sample.prompt_ids) + len(sample.output_ids), self._config.max_length
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
        """Every position of the answer, in order."""
        tokens = self._tensor([*sample.prompt_ids, *sample.output_ids])
        num_blocks = [-(-(len(tokens) - 1) // _BLOCK_SIZE)] * len(self._layout.groups)
        storage = allocate_storage(
            self._layout, num_blocks=num_blocks, block_size=_BLOCK_SIZE, dtype=self._dtype, device=self._device
        )
        cache = TextCache(TorchAttention(storage), self._layout, num_blocks, _BLOCK_SIZE)
        first = len(sample.prompt_ids) - 1
        for start, logits in cache.logits(self._model, tokens[:-1], _SCORE_STEP_TOKENS, first):
            yield from self._compared(logits.float(), tokens[start + 1 : start + 1 + len(logits)])

    def _compared(self, logits: torch.Tensor, taken: torch.Tensor) -> list[_Position]:
        """Logits [rows, vocab_size] against the tokens [rows] that the answer took."""
        logits = logits.log_softmax(dim=-1)
        logprobs = logits.gather(1, taken[:, None])[:, 0]
        anything, _ = logits.max(dim=-1)
        anything_token = logits.argmax(dim=-1)
        if self._stops:
            logits[:, self._stops] = float("-inf")
        no_stop, _ = logits.max(dim=-1)
        ended = torch.isin(taken, self._tensor(self._stops))
        expected = torch.where(ended, anything_token, logits.argmax(dim=-1))
        regret = torch.where(ended, anything, no_stop) - logprobs
        return [_Position(*row) for row in zip(expected.tolist(), regret.tolist(), logprobs.tolist(), strict=True)]

    def _tensor(self, values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device)


def _summed_up(sample: Sample, positions: list[_Position]) -> Score:
    differences = [
        Difference(i, sample.output_ids[i], position.expected, position.regret)
        for i, position in enumerate(positions)
        if position.regret > 0
    ]
    first = differences[0] if differences else None
    engine_logprobs = sample.logprobs
    off = [abs(a - b.logprob) for a, b in zip(engine_logprobs, positions, strict=True)] if engine_logprobs else []
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


@dataclasses.dataclass(frozen=True, slots=True)
class Perplexity:
    """What came out.

    Attributes:
        perplexity: of the text.
        nats_per_token: its logarithm.
        tokens: that were predicted; the first one of each piece is not.
        kv_bytes_per_token: what a token that is kept takes in all layers, scales and the like among it.
        kv_peak_bytes: of the blocks that the longest piece held at the same time.
        census: what a budget left of the first piece; None without one.
    """

    perplexity: float
    nats_per_token: float
    tokens: int
    kv_bytes_per_token: int
    kv_peak_bytes: int
    census: Census | None


class PerplexityMeter:
    """One model with one cache setting.

    Args:
        config: model and cache settings; what is about serving is not used. Longer texts than `max_model_len` are cut
            into pieces of that many tokens, which do not see each other.
        step_tokens: computed at once.

    Raises:
        CheckpointError, ConfigError: the model or the settings are at fault.
    """

    def __init__(self, config: EngineConfig, step_tokens: int = STEP_TOKENS) -> None:
        if step_tokens < 1:
            raise ConfigError(f"--step-tokens must be at least 1, not {step_tokens}")
        checkpoint = open_checkpoint(Path(config.model))
        alone = dataclasses.replace(
            config,
            max_num_seqs=1,
            max_num_batched_tokens=step_tokens,
            enable_prefix_caching=False,
            preemption="recompute",
            tensor_parallel_size=1,
        )
        self.config = resolve_config(alone, checkpoint.config)
        self.tokenizer = checkpoint.tokenizer
        self._demand = demand_of(self.config, checkpoint.config)
        self._num_blocks = self.config.num_blocks or self._demand.useful  # open on a GPU
        if self._num_blocks < self._demand.useful:
            raise ConfigError(
                f"{self._num_blocks} KV blocks are too few for {self._demand.max_model_len} tokens at once; "
                "make --max-model-len smaller"
            )
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        self._device = torch.device(self.config.device)
        self._vocab_size = checkpoint.config.vocab_size
        self._model = build_model(
            checkpoint.config,
            checkpoint.weights,
            max_positions=self._demand.max_model_len,
            dtype=getattr(torch, self.config.dtype),
            device=self._device,
            quantization=self.config.quantization,
        )

    def measure(self, token_ids: Sequence[int]) -> Perplexity:
        """Predicts every token of a text but the first.

        Raises:
            RequestError: there is nothing to predict, or the model does not know a token.
        """
        foreign = [token for token in token_ids if not 0 <= token < self._vocab_size]
        if foreign:
            raise RequestError(f"token id {foreign[0]} is outside the vocabulary of {self._vocab_size}")
        if len(token_ids) < 2:
            raise RequestError(f"a text of {len(token_ids)} tokens has nothing to predict; give at least two")
        length = self._demand.max_model_len
        pieces = [token_ids[first : first + length] for first in range(0, len(token_ids) - 1, length)]
        measured = [self._measure_piece(piece) for piece in pieces if len(piece) > 1]
        tokens = sum(len(piece) - 1 for piece in pieces)
        mean = math.fsum(nats for nats, _, _ in measured) / tokens
        return Perplexity(
            perplexity=math.exp(mean),
            nats_per_token=mean,
            tokens=tokens,
            kv_bytes_per_token=sum(self._demand.token_bytes),
            kv_peak_bytes=max(peak for _, peak, _ in measured),
            census=measured[0][2],
        )

    @torch.inference_mode()
    def _measure_piece(self, token_ids: Sequence[int]) -> tuple[float, int, Census | None]:
        """Nats of all its tokens but the first, bytes of the blocks in use at most, and what a budget left."""
        config, demand = self.config, self._demand
        attention = attention_of(config, storage_of(config, demand, self._num_blocks, self._device))
        cache = TextCache(attention, demand.layout, demand.sizes(self._num_blocks), config.block_size)
        tokens = torch.tensor(token_ids, device=self._device)
        nats, peak = 0.0, 0
        for start, logits in cache.logits(self._model, tokens[:-1], demand.max_num_batched_tokens):
            peak = max(peak, sum(a * b for a, b in zip(cache.used_tokens, demand.token_bytes, strict=True)))
            successors = tokens[start + 1 : start + 1 + len(logits)]
            nats += float(cross_entropy(logits.float(), successors, reduction="sum"))
        is_partial = isinstance(attention, HeavyHitterAttention)
        census = attention.census(cache.block_tables, len(tokens) - 1) if is_partial else None
        return nats, peak, census


def measure_file(path: Path, config: EngineConfig, step_tokens: int) -> Perplexity:
    """Of a text file in UTF-8.

    Raises:
        CheckpointError, ConfigError, RequestError: the model, the settings or the text are at fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is no text that can be read: {error}") from error
    meter = PerplexityMeter(config, step_tokens)
    return meter.measure(meter.tokenizer.encode(text))
