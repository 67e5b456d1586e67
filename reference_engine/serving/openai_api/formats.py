"""Formats of whole answers and stream chunks on each of the two routes."""

import time
import uuid
from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, UnsetType

from bakeoff.reference_engine.core.request import FinishReason
from bakeoff.reference_engine.serving.openai_api.answer_parts import Parts
from bakeoff.reference_engine.serving.openai_api.answers import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    CompletionTokensDetails,
    FunctionCall,
    Message,
    PromptTokensDetails,
    TextChoice,
    Timings,
    ToolCall,
    Usage,
    chat_logprobs,
    echoed_logprobs,
    prompt_logprobs,
    text_logprobs,
)
from bakeoff.reference_engine.serving.openai_api.choices import Choice, TokenEvent


class AnswerFormat(Protocol):
    """Creates the answers to one HTTP request."""

    def opening(self, choice: Choice) -> list[Answer]:
        """Chunks to send right before a choice's first token."""
        ...

    def chunk(self, event: TokenEvent, choice: Choice) -> Answer:
        """The chunk of one token."""
        ...

    def usage(self, usage: Usage) -> Answer:
        """The last chunk of a stream that reports usage."""
        ...

    def whole(self, choices: list[tuple[Choice, list[TokenEvent]]], usage: Usage) -> Answer:
        """The answer of a request that does not stream."""
        ...


def usage_of(choices: Sequence[Choice], prompts: Sequence[Sequence[int]]) -> Usage:
    """Token counts up to now.

    Each prompt is counted once, however many choices it gets, as by OpenAI and vLLM; its cached tokens are those of its
    first choice.

    Args:
        choices: of all prompts, in order of prompts, equally many for each.
        prompts: token ids.
    """
    prompt_tokens = sum(len(prompt) for prompt in prompts)
    completion = sum(choice.num_output for choice in choices)
    firsts = choices[:: len(choices) // len(prompts)]
    cached = [choice.num_cached_tokens for choice in firsts if choice.num_cached_tokens is not None]
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
        prompt_tokens_details=PromptTokensDetails(sum(cached)) if cached else UNSET,
        completion_tokens_details=_details(choices),
    )


def final_usage_of(choices: Sequence[Choice], prompts: Sequence[Sequence[int]]) -> Usage:
    """Token counts and timings at the end; arguments as in `usage_of`."""
    usage = usage_of(choices, prompts)
    usage.timings = Timings(
        queued_s=max(choice.phases.queue_s for choice in choices),
        prefill_s=max(choice.phases.prefill_s for choice in choices),
        decode_s=max(choice.phases.decode_s for choice in choices),
        detokenize_s=sum(choice.detokenize_s for choice in choices),
    )
    return usage


class TextFormat:
    """POST /v1/completions.

    Args:
        answer_id: of the whole answer.
        model: name to report.
        return_token_ids: whether choices carry token ids, and a choice's first chunk those of its prompt.
    """

    def __init__(self, answer_id: str, model: str, *, return_token_ids: bool) -> None:
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._return_token_ids = return_token_ids

    def opening(self, choice: Choice) -> list[Answer]:
        """The prompt, if the answer repeats it."""
        return [] if choice.echo is None else [self._answer(TextChoice(index=choice.index, text=choice.echo))]

    def chunk(self, event: TokenEvent, choice: Choice) -> Answer:
        is_first = choice.num_output == 1
        return self._answer(
            TextChoice(
                index=event.index,
                text=event.text,
                logprobs=text_logprobs([event], choice.num_characters - len(event.text)),
                finish_reason=event.finish_reason,
                stop_reason=event.stop_reason,
                prompt_token_ids=choice.prompt_token_ids if self._return_token_ids and is_first else UNSET,
                token_ids=[event.token_id] if self._return_token_ids else UNSET,
            )
        )

    def usage(self, usage: Usage) -> Answer:
        return self._answer(usage=usage)

    def whole(self, choices: list[tuple[Choice, list[TokenEvent]]], usage: Usage) -> Answer:
        return self._answer(*(self._whole_choice(choice, events) for choice, events in choices), usage=usage)

    def _whole_choice(self, choice: Choice, events: list[TokenEvent]) -> TextChoice:
        last, echo = events[-1], choice.echo or ""
        answered = [] if choice.is_echo_alone else events
        logprobs = text_logprobs(answered, len(echo))
        if choice.echo is not None and choice.prompt_logprobs is not None:
            echoed = echoed_logprobs(choice.prompt_token_ids, choice.prompt_logprobs, choice.token_texts)
            logprobs = echoed if logprobs is None else echoed.followed_by(logprobs)
        return TextChoice(
            index=choice.index,
            text=echo + "".join(event.text for event in answered),
            logprobs=logprobs,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            prompt_token_ids=choice.prompt_token_ids if self._return_token_ids else UNSET,
            token_ids=[event.token_id for event in answered] if self._return_token_ids else UNSET,
            prompt_logprobs=UNSET
            if choice.echo is not None
            else prompt_logprobs(choice.prompt_logprobs, choice.token_texts),
        )

    def _answer(self, *choices: TextChoice, usage: Usage | UnsetType = UNSET) -> Answer:
        return Answer(self._id, "text_completion", self._created, self._model, list(choices), usage)


class ChatFormat:
    """POST /v1/chat/completions; arguments as in `TextFormat`. Data of the prompt stands beside the choices."""

    def __init__(self, answer_id: str, model: str, *, return_token_ids: bool) -> None:
        self._id = answer_id
        self._model = model
        self._created = int(time.time())
        self._return_token_ids = return_token_ids

    def opening(self, choice: Choice) -> list[Answer]:
        """The role. It must not be sent before there is a token, because clients take it for the first one."""
        delta = ChatChunkChoice(index=choice.index, delta=Message(role="assistant", content=""))
        answer = self._chunk(delta)
        answer.prompt_token_ids = choice.prompt_token_ids if self._return_token_ids else UNSET
        return [answer]

    def chunk(self, event: TokenEvent, choice: Choice) -> Answer:
        return self._chunk(
            ChatChunkChoice(
                index=event.index,
                delta=_piece(event, choice),
                logprobs=chat_logprobs([event]),
                finish_reason=_finish_reason(event, choice),
                stop_reason=event.stop_reason,
                token_ids=[event.token_id] if self._return_token_ids else UNSET,
            )
        )

    def usage(self, usage: Usage) -> Answer:
        return self._chunk(usage=usage)

    def whole(self, choices: list[tuple[Choice, list[TokenEvent]]], usage: Usage) -> Answer:
        written = [self._whole_choice(choice, events) for choice, events in choices]
        usage.completion_tokens_details = _details([choice for choice, _ in choices])  # counted while writing
        answer = Answer(self._id, "chat.completion", self._created, self._model, written, usage)
        first, _ = choices[0]
        answer.prompt_token_ids = first.prompt_token_ids if self._return_token_ids else UNSET
        answer.prompt_logprobs = prompt_logprobs(first.prompt_logprobs, first.token_texts)
        return answer

    def _whole_choice(self, choice: Choice, events: list[TokenEvent]) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=_message(events, choice),
            logprobs=chat_logprobs(events),
            finish_reason=_finish_reason(events[-1], choice),
            stop_reason=events[-1].stop_reason,
            token_ids=[event.token_id for event in events] if self._return_token_ids else UNSET,
        )

    def _chunk(self, *choices: ChatChunkChoice, usage: Usage | UnsetType = UNSET) -> Answer:
        return Answer(self._id, "chat.completion.chunk", self._created, self._model, list(choices), usage)


def _details(choices: Sequence[Choice]) -> CompletionTokensDetails | UnsetType:
    counts = [choice.reader.num_reasoning_tokens for choice in choices if choice.reader is not None]
    known = [count for count in counts if count is not None]
    return CompletionTokensDetails(sum(known)) if known else UNSET


def _finish_reason(event: TokenEvent, choice: Choice) -> str | None:
    """Why an answer ended; a call of a function is a reason of its own."""
    has_calls = choice.reader is not None and choice.reader.has_calls
    return "tool_calls" if has_calls and event.finish_reason is FinishReason.STOP else event.finish_reason


def _parts(event: TokenEvent, choice: Choice) -> Parts:
    if choice.reader is None:
        return Parts("", event.text)
    return choice.reader.push(event.text, is_last=event.finish_reason is not None)


def _piece(event: TokenEvent, choice: Choice) -> Message:
    """What a token adds to a message; a chunk of reasoning or of calls alone has no content, even none without text."""
    reasoning, content, calls = _parts(event, choice)
    return Message(
        content=content or ("" if not reasoning and not calls else None),
        reasoning_content=reasoning or None,
        tool_calls=[_call(part.number, part.name, part.arguments) for part in calls] or None,
    )


def _call(index: int | None, name: str | None, arguments: str) -> ToolCall:
    """A call, or a piece of one, of which the first has the name and gets an id."""
    if name is None:
        return ToolCall(index, function=FunctionCall(arguments=arguments))
    # Mistral's templates take only ids of nine letters and digits.
    return ToolCall(index, uuid.uuid4().hex[:9], "function", FunctionCall(name, arguments))


def _message(events: Sequence[TokenEvent], choice: Choice) -> Message:
    parts = [_parts(event, choice) for event in events]
    names: list[str | None] = []
    arguments: list[list[str]] = []
    for call in (call for part in parts for call in part.calls):
        if call.name is not None:
            names.append(call.name)
            arguments.append([])
        arguments[-1].append(call.arguments)
    content = "".join(part.content for part in parts)
    return Message(
        role="assistant",
        content=content if content or not names else None,
        reasoning_content="".join(part.reasoning for part in parts) or None,
        tool_calls=[_call(None, name, "".join(pieces)) for name, pieces in zip(names, arguments, strict=True)] or None,
    )
