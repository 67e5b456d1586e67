"""Teacher-forced evaluation: the likelihood that a model gives to texts and to answers, in one pass over each.

The model sees the given tokens before each position, so one difference does not cause later ones. A text is computed in
steps, which read earlier tokens from the KV cache.

Scores compare an engine's answers with this model. A position matches if no other token is likelier. End-of-sequence
tokens are excluded from that comparison unless the answer has one there: engines that force a length either forbid them
or continue after them.

Perplexity, exp of the mean of -ln p(token | earlier tokens), measures the cost of rounding or dropping keys and values.
Its steps are small, so that a token sees nearly all of its past as later steps of a request would: rounded, dropped, or
out of the window.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from torch.nn.functional import cross_entropy

from bakeoff.reference_engine.ablations.heavy_hitter import Census, HeavyHitterAttention
from bakeoff.reference_engine.attention.torch_backend import TorchAttention
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.engine.executors import attention_of, storage_of
from bakeoff.reference_engine.engine.resolution import (
    cache_layout,
    demand_of,
    resolve_config,
    resolve_device,
    sinks_seen_from,
)
from bakeoff.reference_engine.errors import ConfigError, RequestError
from bakeoff.reference_engine.kv_cache.storage import allocate_storage
from bakeoff.reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.models.decoder import Model
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.tools.text_cache import TextCache

NEAR_TIE_NATS = 0.2
"""A mismatch below this regret may be rounding: bf16 has eight significant bits, so rounding two logits of 20 alone
changes their difference by up to 0.12, and the layers before add more."""
STEP_TOKENS = 32
"""Tokens per step of a perplexity: few compared with any window or budget, enough to amortise reading the weights."""
_BLOCK_SIZE = 16  # tokens, of scores
_SCORE_STEP_TOKENS = 512  # bounds the logits, [512, vocab_size], whatever the answer's length


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine's answer; `logprobs` are the engine's, one per output token."""

    id: str
    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float] | None = None


class Difference(msgspec.Struct, frozen=True):
    """A mismatch: the model gives `expected` a log-probability `regret` nats above that of `token`."""

    position: int
    token: int
    expected: int
    regret: float


class Score(msgspec.Struct, frozen=True):
    """Comparison of one answer with the model. Log-probabilities are natural, regrets in nats.

    Attributes:
        id: of the sample.
        error: reason why it was not scored; the other fields are then empty.
        tokens: positions compared.
        agreement: fraction of positions at which the answer has the likeliest token.
        first_divergence: index of the first mismatch; None without one.
        matched_prefix: tokens before it.
        mean_regret: mean over all positions; 0 for a match.
        max_regret: maximum over all positions.
        near_ties: mismatches with a regret below `NEAR_TIE_NATS`.
        first: the mismatch at `first_divergence`.
        worst: the mismatch with the largest regret.
        mean_abs_logprob_diff: between the engine's log-probabilities and the model's; None if the engine gave none.
        max_abs_logprob_diff: maximum over all positions.
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
    """One position of an answer: `expected` is the likeliest token; `regret` is 0 if the answer has it."""

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
        ConfigError: this machine has no such device.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, device: str = "auto") -> None:
        self._checkpoint, self._config = checkpoint, checkpoint.config
        self._layout = cache_layout(checkpoint.config)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device = torch.device(resolve_device(device))
        self._stops = sorted(i for i in checkpoint.eos_token_ids if i < checkpoint.config.vocab_size)
        self._length = checkpoint.config.default_length
        self._model = self._built()

    def _built(self) -> Model:
        return build_model(
            self._config,
            self._checkpoint.weights,
            max_positions=self._length,
            dtype=self._dtype,
            device=self._device,
        )

    def _model_for(self, num_tokens: int) -> Model:
        """The model for a sequence of that length; rebuilt if its rotations depend on the length."""
        length = self._config.default_length if num_tokens <= self._config.default_length else self._config.max_length
        if length != self._length:
            self._length = length
            del self._model  # before its weights are loaded again
            self._model = self._built()
        return self._model

    def score(self, sample: Sample) -> Score:
        """Score one answer.

        Raises:
            RequestError: it is empty, too long for the model, or has tokens outside the vocabulary.
        """
        self._check(sample)
        positions = list(self._positions(sample))
        if not all(math.isfinite(position.regret) for position in positions):
            raise RequestError(f"the model's logits are not finite in {str(self._dtype).removeprefix('torch.')}")
        return _summed_up(sample, positions)

    def _check(self, sample: Sample) -> None:
        length, limit = len(sample.prompt_ids) + len(sample.output_ids), self._config.max_length
        if not sample.prompt_ids or not sample.output_ids:
            raise RequestError("prompt_ids and output_ids must each have at least one token")
        if length > limit:
            raise RequestError(f"prompt and output are {length} tokens, the model was made for {limit}")
        if sample.logprobs is not None and len(sample.logprobs) != len(sample.output_ids):
            raise RequestError(f"{len(sample.logprobs)} logprobs for {len(sample.output_ids)} output tokens")
        foreign = [i for i in (*sample.prompt_ids, *sample.output_ids) if not 0 <= i < self._config.vocab_size]
        if foreign:
            raise RequestError(f"the model has no token {foreign[0]}, its vocabulary is {self._config.vocab_size}")

    @torch.inference_mode()
    def _positions(self, sample: Sample) -> Iterator[_Position]:
        """The positions of the answer, in order."""
        tokens = self._tensor([*sample.prompt_ids, *sample.output_ids])
        num_blocks = [-(-(len(tokens) - 1) // _BLOCK_SIZE)] * len(self._layout.groups)
        storage = allocate_storage(
            self._layout, num_blocks=num_blocks, block_size=_BLOCK_SIZE, dtype=self._dtype, device=self._device
        )
        cache = TextCache(TorchAttention(storage), self._layout, num_blocks, _BLOCK_SIZE)
        first = len(sample.prompt_ids) - 1
        for start, logits in cache.logits(self._model_for(len(tokens)), tokens[:-1], _SCORE_STEP_TOKENS, first):
            yield from self._compared(logits.float(), tokens[start + 1 : start + 1 + len(logits)])

    def _compared(self, logits: torch.Tensor, tokens: torch.Tensor) -> list[_Position]:
        """Compare logits [rows, vocab_size] with the answer's tokens [rows]."""
        logits = logits.log_softmax(dim=-1)
        logprobs = logits.gather(1, tokens[:, None])[:, 0]
        anything, _ = logits.max(dim=-1)
        anything_token = logits.argmax(dim=-1)
        if self._stops:
            logits[:, self._stops] = float("-inf")
        no_stop, _ = logits.max(dim=-1)
        ended = torch.isin(tokens, self._tensor(self._stops))
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
    """Score JSON lines: a `Score` for each `Sample`.

    A sample that cannot be scored gets a line with its `error`.

    Raises:
        CheckpointError, ConfigError: see `Scorer`.
        RequestError: a line is not a sample.
    """
    scorer = Scorer(open_checkpoint(model), dtype, device)
    for number, line in enumerate(lines, start=1):
        try:
            sample = msgspec.json.decode(line, type=Sample)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestError(f"line {number} is not a sample: {error}") from error
        try:
            score = scorer.score(sample)
        except RequestError as error:
            score = Score(sample.id, str(error))
        yield msgspec.json.encode(score) + b"\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity of a text, and the KV cache it took.

    Attributes:
        perplexity: exp of `nats_per_token`.
        nats_per_token: mean of -ln p.
        tokens: tokens predicted: all but the first of each piece.
        kv_bytes_per_token: cache bytes per token in all layers, scales included.
        kv_peak_bytes: maximum bytes of blocks in use at one time.
        census: tokens kept of the first piece under a budget; None without a budget.
    """

    perplexity: float
    nats_per_token: float
    tokens: int
    kv_bytes_per_token: int
    kv_peak_bytes: int
    census: Census | None


class PerplexityMeter:
    """Measures perplexity of one model with one cache setting.

    Args:
        config: model and cache settings; settings of serving are ignored. Texts longer than `max_model_len` are split
            into independent pieces of that length.
        step_tokens: tokens per step.

    Raises:
        CheckpointError: weights are missing or damaged.
        ConfigError: the settings are invalid, or the cache is too small.
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
            pipeline_parallel_size=1,
            context_parallel_size=1,
        )
        self.config: EngineConfig = resolve_config(alone, checkpoint.config)
        self.tokenizer: Tokenizer = checkpoint.tokenizer
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
            sinks_seen_from=sinks_seen_from(self.config),
        )

    def measure(self, token_ids: Sequence[int]) -> Perplexity:
        """Measure a text.

        Raises:
            RequestError: it has fewer than two tokens, or one outside the vocabulary.
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

    def logits(self, token_ids: Sequence[int], first: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        """Compute logits for the successors of a text's tokens, step by step, in an empty cache.

        Args:
            token_ids: at most `max_model_len`, all of the vocabulary.
            first: index of the first token to yield logits for.

        Yields:
            For each step: the index of its first token, and logits [rows, vocab_size], rows <= `step_tokens`. The last
            token has no row, since nothing is known to follow it.
        """
        yield from self._logits(self._empty_cache(), torch.tensor(token_ids, device=self._device), first)

    def _empty_cache(self) -> TextCache:
        config, demand = self.config, self._demand
        attention = attention_of(config, storage_of(config, demand, self._num_blocks, self._device))
        return TextCache(attention, demand.layout, demand.sizes(self._num_blocks), config.block_size)

    @torch.inference_mode()
    def _logits(self, cache: TextCache, tokens: torch.Tensor, first: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        yield from cache.logits(self._model, tokens[:-1], self._demand.max_num_batched_tokens, first)

    @torch.inference_mode()
    def _measure_piece(self, token_ids: Sequence[int]) -> tuple[float, int, Census | None]:
        """Sum of nats over all tokens but the first, peak bytes of blocks in use, and the census."""
        cache = self._empty_cache()
        tokens = torch.tensor(token_ids, device=self._device)
        nats, peak = 0.0, 0
        for start, logits in self._logits(cache, tokens):
            peak = max(peak, sum(a * b for a, b in zip(cache.used_tokens, self._demand.token_bytes, strict=True)))
            successors = tokens[start + 1 : start + 1 + len(logits)]
            nats += float(cross_entropy(logits.float(), successors, reduction="sum"))
        attention = cache.attention
        is_partial = isinstance(attention, HeavyHitterAttention)
        census = attention.census(cache.block_tables, len(tokens) - 1) if is_partial else None
        return nats, peak, census


def measure_file(path: Path, config: EngineConfig, step_tokens: int) -> Perplexity:
    """Measure a text file in UTF-8.

    Raises:
        CheckpointError, ConfigError, RequestError: see `PerplexityMeter`; or the file cannot be read.
    """
    text = read_text(path)
    meter = PerplexityMeter(config, step_tokens)
    return meter.measure(meter.tokenizer.encode(text))
