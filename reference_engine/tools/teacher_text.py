"""Answers of the teacher to prompts: the text that a student is trained on (Kim and Rush, arXiv 1606.07947).

The prompts of a chunk are answered together, and its line is written before the next chunk begins. An interrupted run
resumes with the next chunk and gets the same text, because nothing is cached between chunks. The first chunk is held
out.
"""

import dataclasses
import itertools
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.errors import ConfigError, RequestError
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.tools.progress import Progress

_PROMPT_TOKENS = 128
_MOST_HELD_OUT = 32  # prompts
_CHUNK = 64  # prompts; the number that the engine on a CPU runs at a time
_BLOCK_TOKENS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """Tokens of a prompt and its answer."""

    token_ids: list[int]
    prompt_len: int

    @property
    def answer(self) -> list[int]:
        """Tokens without those of the prompt."""
        return self.token_ids[self.prompt_len :]

    @property
    def answer_len(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids) - self.prompt_len


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """Settings of the teacher's text.

    Attributes:
        text_tokens: minimum tokens of answers to train on.
        answer_tokens: maximum tokens of one answer.
        max_length: maximum tokens of prompt and answer.
        temperature: of sampling.
        seed: for prompts and sampling.
    """

    text_tokens: int
    answer_tokens: int
    max_length: int
    temperature: float
    seed: int

    def __post_init__(self) -> None:
        if self.answer_tokens >= self.max_length:
            raise ConfigError(
                f"--answer-tokens {self.answer_tokens} leaves no room for a prompt in {self.max_length} tokens, the "
                "least of --batch-tokens and what the two models take; make it smaller"
            )


def prompts_of(text: str, tokenizer: Tokenizer, plan: TextPlan) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts to hold out and prompts to train on, in random order: each line of the text is one.

    A line is cut to 128 tokens and put into the chat template, if there is one. If that is too long, the prompt keeps
    its end.

    Raises:
        RequestError: the text has fewer than two lines.
    """
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if len(lines) < 2:
        raise RequestError(
            f"a text of {len(lines)} different lines has too few prompts: each line is one, and some are held out; "
            "give at least two"
        )
    random.Random(plan.seed).shuffle(lines)  # noqa: S311 (no secret)
    prompts = [_prompt(line, tokenizer)[-(plan.max_length - plan.answer_tokens) :] for line in lines]
    held_out = min(_MOST_HELD_OUT, max(1, len(prompts) // 10))
    return prompts[:held_out], prompts[held_out:]


def _prompt(line: str, tokenizer: Tokenizer) -> list[int]:
    token_ids = tokenizer.encode(line)
    if len(token_ids) > _PROMPT_TOKENS:
        line = tokenizer.decode(token_ids[:_PROMPT_TOKENS])
    if tokenizer.chat_template is None:
        return token_ids[:_PROMPT_TOKENS]
    chat = tokenizer.render_chat([{"role": "user", "content": line}], add_generation_prompt=True)
    return tokenizer.encode(chat, add_special_tokens=False)


def _open(model: Path, device: str, longest: int) -> LLM:
    """Opens the model with a KV cache for one chunk of sequences that long; training needs the rest of the memory."""
    return LLM(
        model,
        device=device,
        max_model_len=longest,
        max_num_seqs=_CHUNK,
        block_size=_BLOCK_TOKENS,
        num_blocks=_CHUNK * -(-longest // _BLOCK_TOKENS),
        enable_prefix_caching=False,
    )


def written_text(
    file: Path,
    teacher: Path,
    device: str,
    prompts: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    plan: TextPlan,
    *,
    say: Callable[[str], None],
) -> tuple[list[Exchange], list[Exchange]]:
    """Lets the teacher write until there is enough text; if prompts run out they are reused, with other draws.

    Args:
        file: JSON lines, one per chunk; existing ones are not written again.
        teacher: checkpoint directory; opened only if chunks are missing.
        device: ``cpu`` or ``cuda``.
        prompts: those to hold out, and those to train on.
        plan: settings of the text.
        say: called with lines of progress.

    Returns:
        The held-out text, and the text to train on.
    """
    chunks = _read(file)
    held_out, learned = prompts
    tokens = _count(chunks[1:])
    if not chunks or tokens < plan.text_tokens:
        progress = Progress(say, "teacher's text: token", tokens, plan.text_tokens)
        longest = max(map(len, itertools.chain(*prompts))) + plan.answer_tokens
        with _open(teacher, device, longest) as llm, file.open("ab") as handle:
            while not chunks or tokens < plan.text_tokens:
                first = (len(chunks) - 1) * _CHUNK
                chosen = [learned[number % len(learned)] for number in range(first, first + _CHUNK)]
                chunk = _written(llm, chosen if chunks else held_out, len(chunks), plan)
                handle.write(json.dumps([dataclasses.asdict(exchange) for exchange in chunk]).encode() + b"\n")
                handle.flush()
                os.fsync(handle.fileno())
                chunks.append(chunk)
                tokens = _count(chunks[1:])
                progress.advance(tokens)
    return chunks[0], [exchange for chunk in chunks[1:] for exchange in chunk]


def _read(file: Path) -> list[list[Exchange]]:
    """The chunks written so far; an incomplete line from a crash is removed from the file."""
    data = file.read_bytes() if file.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(file, len(whole))
    return [[Exchange(**exchange) for exchange in json.loads(line)] for line in whole.splitlines()]


def _count(chunks: Sequence[Sequence[Exchange]]) -> int:
    return sum(exchange.answer_len for chunk in chunks for exchange in chunk)


def _written(teacher: LLM, prompts: Sequence[Sequence[int]], number: int, plan: TextPlan) -> list[Exchange]:
    first = plan.seed + number * _CHUNK
    params = [
        SamplingParams(max_tokens=plan.answer_tokens, temperature=plan.temperature, seed=first + place)
        for place in range(len(prompts))
    ]
    answers = teacher.generate(prompts, params)
    return [
        Exchange([*answer.prompt_token_ids, *answer.completions[0].token_ids], len(answer.prompt_token_ids))
        for answer in answers
    ]
