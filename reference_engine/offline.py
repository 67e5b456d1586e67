"""The engine without HTTP: for scripts, benchmarks and tests.

llm = LLM("path/to/checkpoint", dtype="bfloat16")
for answer in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8, temperature=0.0)):
    print(answer.completions[0].text)
"""

import contextlib
import dataclasses
import itertools
import math
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.outputs import PromptLogprob, TokenOutput
from bakeoff.reference_engine.core.request import FinishReason, Request, SamplingParams
from bakeoff.reference_engine.core.speculation_settings import Speculation
from bakeoff.reference_engine.engine.assembly import build_engine
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.engine.text_writer import TextWriter
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from bakeoff.reference_engine.loading.tokenizer import Tokenizer

_ANY_NUMBER = 1 << 40
_CALLS = itertools.count()  # makes request ids unique


@dataclasses.dataclass(slots=True)
class Completion:
    """One answer to a prompt.

    Attributes:
        token_ids: all tokens, including the one that ended it.
        logprobs: of each token, if requested.
        text: without special tokens and without the stop string that ended it.
        finish_reason: reason for its end.
    """

    token_ids: list[int] = dataclasses.field(default_factory=list[int])
    logprobs: list[float] = dataclasses.field(default_factory=list[float])
    text: str = ""
    finish_reason: FinishReason | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Natural logarithm of the whole completion's probability, if log-probabilities were requested."""
        return math.fsum(self.logprobs) if self.logprobs else None


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and its completions.

    Attributes:
        prompt_token_ids: at least one.
        completions: in order of their seeds; those of a beam search best first.
        prompt_logprobs: of each token of the prompt but the first; None if not requested.
    """

    prompt_token_ids: list[int]
    completions: list[Completion]
    prompt_logprobs: tuple[PromptLogprob, ...] | None = None


class LLM:
    """A loaded model, as a context manager that closes it.

    Args:
        model: Hugging Face checkpoint directory or .gguf file.
        settings: other fields of `EngineConfig`; `speculation` may be a dictionary of `Speculation`'s.

    Raises:
        CheckpointError, ConfigError: the model or the settings are invalid.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:  # noqa: ANN401  (EngineConfig says what)
        settings.setdefault("max_queue", _ANY_NUMBER)
        if isinstance(settings.get("speculation"), Mapping):
            settings["speculation"] = str(Speculation(**settings["speculation"]))
        config = EngineConfig(model=str(model), **settings)
        checkpoint = open_checkpoint(Path(model), config.load_format)
        self.engine: BeamSearchEngine = _built(config, checkpoint)
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self._eos_token_ids = checkpoint.eos_token_ids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the processes that share the model, if any; they also stop when this process exits."""
        self.engine.close()

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        n: int = 1,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> list[Answer]:
        """Answers to all prompts, computed together.

        Whatever ends a call early, Ctrl-C included, cancels the remaining requests; only an error inside a step ends
        the engine. The first Ctrl-C takes effect after the current step, a second one at once.

        Args:
            prompts: texts or token ids.
            params: for all prompts, or one for each.
            n: completions of each prompt; they share its blocks, and their seeds are consecutive. For a beam search
                they are the best results, at most as many as it has beams.
            stop: strings that end a completion.
            ignore_eos: continue after an end-of-sequence token.

        Raises:
            RequestError: a prompt can never be computed, or a beam search has stop strings or more completions than
                beams; nothing is computed then.
        """
        every = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        completing: dict[str, _Completing] = {}
        call = next(_CALLS)
        leaders: list[Request] = []
        for number, (prompt, wanted) in enumerate(zip(prompts, every, strict=True)):
            tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            stops = wanted.stop_token_ids | (frozenset() if ignore_eos else self._eos_token_ids)
            chosen = _chosen(wanted, stops, n, stop)
            family = [
                Request(f"{call}/{number}/{i}", tokens, dataclasses.replace(chosen, seed=wanted.seed + i))
                for i in range(n if chosen.beams is None else chosen.beams.width)
            ]
            family[0].siblings = tuple(family[1:])
            leaders.append(family[0])
            completing |= {
                member.request_id: _Completing(TextWriter(self.tokenizer, stop, min_tokens=wanted.min_tokens))
                for member in family
            }
        with contextlib.closing(_outputs(self.engine, leaders)) as outputs:
            for output in outputs:
                if completing[output.request_id].push(output):
                    self.engine.cancel(output.request_id)
        return [
            Answer(
                leader.token_ids[: leader.prompt_len],
                [completing[f"{call}/{number}/{i}"].completion for i in range(n)],
                completing[leader.request_id].prompt_logprobs,
            )
            for number, leader in enumerate(leaders)
        ]


def _chosen(params: SamplingParams, stops: frozenset[int], n: int, strings: Sequence[str]) -> SamplingParams:
    """The parameters with everything that ends a completion; beam search needs log-probabilities and reports them."""
    if params.beams is None:
        return dataclasses.replace(params, stop_token_ids=stops)
    if n > params.beams.width:
        raise RequestError(f"{n} completions are more than {params.beams.width} beams; ask for fewer", param="n")
    if strings:
        raise RequestError("beam search stops at tokens, not at strings; use stop_token_ids", param="stop")
    return dataclasses.replace(params, stop_token_ids=stops, logprobs=params.logprobs or 0)


class _Completing:
    """One completion in progress."""

    def __init__(self, writer: TextWriter) -> None:
        self.completion = Completion()
        self.prompt_logprobs: tuple[PromptLogprob, ...] | None = None
        self._writer = writer

    def push(self, output: TokenOutput) -> bool:
        """Adds a token; True if a stop string has ended the completion before the engine did.

        Tokens after its end, which come from the same step if drafts were accepted, are ignored.
        """
        completion, token = self.completion, output.token
        if completion.finish_reason is not None:
            return False
        completion.token_ids.append(token.token_id)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if token.logprob is not None:
            completion.logprobs.append(token.logprob)
        added = self._writer.push(token.token_id, output.finish_reason)
        completion.text += added.text
        completion.finish_reason = added.finish_reason
        return added.finish_reason is not None and output.finish_reason is None


def load_engine(config: EngineConfig) -> BeamSearchEngine:
    """Opens `config.model` and builds its engine.

    Raises:
        CheckpointError, ConfigError: the model or the settings are invalid.
    """
    return _built(config, open_checkpoint(Path(config.model), config.load_format))


@torch.inference_mode()
def generate(
    engine: BeamSearchEngine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> list[list[int]]:
    """Output token ids of each prompt, all queued at once.

    Args:
        engine: idle.
        prompts: token ids.
        params: one per prompt.

    Raises:
        RequestError: a prompt can never be computed; nothing is computed then.
    """
    call = next(_CALLS)
    requests = [
        Request(f"{call}/{number}", prompt, sampling)
        for number, (prompt, sampling) in enumerate(zip(prompts, params, strict=True))
    ]
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    with contextlib.closing(_outputs(engine, requests)) as outputs:
        for output in outputs:
            tokens[output.request_id].append(output.token.token_id)
    return list(tokens.values())


def _built(config: EngineConfig, checkpoint: Checkpoint) -> BeamSearchEngine:
    engine, _ = build_engine(resolve_config(config, checkpoint.config), checkpoint)
    return engine


def _outputs(engine: BeamSearchEngine, requests: Sequence[Request]) -> Generator[TokenOutput]:
    """Queues all requests, or none if one is impossible, and steps until all have ended.

    Closing the generator cancels the remaining requests.
    """
    for request in requests:
        engine.check(request)
    request_ids = [member.request_id for request in requests for member in (request, *request.siblings)]
    with interrupts_held() as let_through:
        try:
            for request in requests:
                engine.add(request)
            while engine.has_work:
                yield from engine.step().outputs
                let_through()
        finally:
            for request_id in request_ids:
                engine.cancel(request_id)


@contextlib.contextmanager
def interrupts_held() -> Generator[Callable[[], None]]:
    """Delays SIGINT, which would end the engine in the middle of a step; a second one takes effect at once.

    Yields:
        A function that lets a delayed interrupt take effect.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: None  # Python runs signal handlers on the main thread only
        return
    is_held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal is_held
        if is_held:
            handler(number, frame)
        is_held = True

    def let_through() -> None:
        nonlocal is_held
        if is_held:
            is_held = False
            handler(signal.SIGINT, None)

    signal.signal(signal.SIGINT, hold)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, handler)
        let_through()
