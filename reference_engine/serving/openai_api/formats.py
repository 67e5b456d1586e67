"""Formats of whole answers and stream chunks on each of the two routes."""

import time
from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, UnsetType

from bakeoff.reference_engine.serving.openai_api.answers import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    CompletionTokensDetails,
    Message,
    PromptTokensDetails,
    TextChoice,
    Timings,
    Usage,
    chat_logprobs,
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

    def opening(self, choice: Choice) -> list[Answer]:  # noqa: ARG002 (the protocol's signature)
        """Nothing."""
        return []

    def chunk(self, event: TokenEvent, choice: Choice) -> Answer:
        """See `AnswerFormat.chunk`."""
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
        """See `AnswerFormat.usage`."""
        return self._answer(usage=usage)

    def whole(self, choices: list[tuple[Choice, list[TokenEvent]]], usage: Usage) -> Answer:
        """See `AnswerFormat.whole`."""
        return self._answer(*(self._whole_choice(choice, events) for choice, events in choices), usage=usage)

    def _whole_choice(self, choice: Choice, events: list[TokenEvent]) -> TextChoice:
        return TextChoice(
            index=choice.index,
            text="".join(event.text for event in events),
            logprobs=text_logprobs(events),
            finish_reason=events[-1].finish_reason,
            stop_reason=events[-1].stop_reason,
            prompt_token_ids=choice.prompt_token_ids if self._return_token_ids else UNSET,
            token_ids=[event.token_id for event in events] if self._return_token_ids else UNSET,
            prompt_logprobs=prompt_logprobs(choice.prompt_logprobs, choice.token_texts),
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
        """See `AnswerFormat.chunk`."""
        return self._chunk(
            ChatChunkChoice(
                index=event.index,
                delta=_piece(event, choice),
                logprobs=chat_logprobs([event]),
                finish_reason=event.finish_reason,
                stop_reason=event.stop_reason,
                token_ids=[event.token_id] if self._return_token_ids else UNSET,
            )
        )

    def usage(self, usage: Usage) -> Answer:
        """See `AnswerFormat.usage`."""
        return self._chunk(usage=usage)

    def whole(self, choices: list[tuple[Choice, list[TokenEvent]]], usage: Usage) -> Answer:
        """See `AnswerFormat.whole`."""
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
            finish_reason=events[-1].finish_reason,
            stop_reason=events[-1].stop_reason,
            token_ids=[event.token_id for event in events] if self._return_token_ids else UNSET,
        )

    def _chunk(self, *choices: ChatChunkChoice, usage: Usage | UnsetType = UNSET) -> Answer:
        return Answer(self._id, "chat.completion.chunk", self._created, self._model, list(choices), usage)


def _details(choices: Sequence[Choice]) -> CompletionTokensDetails | UnsetType:
    splitters = [choice.reasoning for choice in choices if choice.reasoning is not None]
    return CompletionTokensDetails(sum(splitter.num_tokens for splitter in splitters)) if splitters else UNSET


def _piece(event: TokenEvent, choice: Choice) -> Message:
    """What a token adds to a message; a chunk of reasoning alone has no content, even none without text."""
    if choice.reasoning is None:
        return Message(content=event.text)
    reasoning, content = choice.reasoning.push(event.text, is_last=event.finish_reason is not None)
    return Message(content=content or ("" if not reasoning else None), reasoning_content=reasoning or None)


def _message(events: Sequence[TokenEvent], choice: Choice) -> Message:
    pieces = [_piece(event, choice) for event in events]
    reasoning = "".join(piece.reasoning_content or "" for piece in pieces)
    content = "".join(piece.content or "" for piece in pieces)
    return Message(role="assistant", content=content, reasoning_content=reasoning or None)
