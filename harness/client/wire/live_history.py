"""Live history: a call of a conversation holds the answers that the server gave to the calls before it.

A plan is encoded before the load, so that its bodies hold a mark where an answer of the load belongs. The client puts
the answer's text, or its token ids, into the place of the mark when the answer has ended; a call that failed leaves the
recorded answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from bakeoff.engines.dialects import Dialect, HttpRequest, TokenKind
from bakeoff.harness.client.wire.rendering import written_out
from bakeoff.harness.client.wire.stream_content import Reads, read_stream
from bakeoff.workloads import Tokenizer, Turn
from bakeoff.workloads.prompts import rendered

AnswerOf = Callable[[Reads, bool], str]
"""The text of an answer, or its token ids with commas; empty if it has none."""


class History(StrEnum):
    """Which answers later calls of a conversation hold."""

    RECORDED = "recorded"
    """The workload's own."""
    LIVE = "live"
    """Those that the engine gave, as text."""
    LIVE_IDS = "live-ids"
    """Those that the engine gave, as token ids; the client writes the prompts with the model's tokenizer."""

    @property
    def is_live(self) -> bool:
        """Whether calls hold the engine's own answers."""
        return self is not History.RECORDED


class MarkedTurn(msgspec.Struct, frozen=True):
    """A turn whose messages have marks in the places of earlier answers.

    Attributes:
        turn: the turn.
        held: positions of the turns whose answers it holds.
        answer: the recorded answer, as the conversation's next turn has it; empty if there is no next one.
    """

    turn: Turn
    held: tuple[int, ...] = ()
    answer: str = ""


def marked(turns: Sequence[Turn], nonce: str) -> list[MarkedTurn]:
    """The turns of a session with marks for the answers of this load.

    A turn goes on behind the last one of its agent if it begins with its messages and an answer; an agent's first turn
    goes on so behind a turn of another agent that it waits for. One that does not, since the agent has compacted its
    history, stays as recorded.

    Args:
        turns: of the session.
        nonce: makes the marks unlike any other text.
    """
    last: dict[str, int] = {}
    result: list[MarkedTurn] = []
    for number, turn in enumerate(turns):
        places = [last[turn.agent]] if turn.agent in last else turn.parents or ()
        before = next((place for place in places if _goes_on(turns[place], turn)), None)
        last[turn.agent] = number
        result.append(MarkedTurn(turn))
        if before is None:
            continue
        earlier, held = result[before], turn.messages or ()
        past = earlier.turn.messages or ()
        answer = held[len(past)]
        result[before] = msgspec.structs.replace(earlier, answer=answer.content)
        place = msgspec.structs.replace(answer, content=_mark(nonce, before), reasoning="")
        messages = (*past, place, *held[len(past) + 1 :])
        result[number] = MarkedTurn(msgspec.structs.replace(turn, messages=messages), (*earlier.held, before))
    return result


def _goes_on(before: Turn, turn: Turn) -> bool:
    past, held = before.messages, turn.messages
    return bool(
        past and held and len(held) > len(past) and held[len(past)].role == "assistant" and held[: len(past)] == past
    )


def _mark(nonce: str, number: int | str) -> str:
    return f"[answer-{nonce}-{number}]"


def _marks(nonce: str) -> str:
    """Pattern of all marks, with the position of the turn."""
    return rf"\[answer-{nonce}-(\d+)\]"


def filled(body: bytes, nonce: str, answers: Mapping[int, str], *, as_ids: bool = False) -> bytes:
    """A JSON body with answers in the places of their marks.

    An answer's last token is left out if the prompt goes on with it: a model that ends its answer itself has written
    the template's end of the turn.

    Args:
        body: as encoded.
        nonce: of the marks.
        answers: text, or token ids with commas, by the position of its turn.
        as_ids: whether the prompt consists of token ids.
    """
    if not as_ids:
        return re.sub(_marks(nonce).encode(), lambda mark: msgspec.json.encode(answers[int(mark[1])])[1:-1], body)

    def ids(mark: re.Match[bytes]) -> bytes:
        answer, following = answers[int(mark[1])].split(","), mark[2].decode()
        if answer[-1] == following:
            answer.pop()
        return ",".join([*filter(None, answer), following]).encode()

    return re.sub(f'"{_marks(nonce)}",(\\d+)'.encode(), ids, body)


def asking_ids(turn: Turn, nonce: str, tokenizer: Tokenizer, ask: Callable[[Turn], HttpRequest]) -> HttpRequest:
    """The request of a marked chat as a completion whose prompt is a list of token ids and marks.

    What comes between two answers is encoded on its own, so that each prompt begins with the tokens of the one before.

    Args:
        turn: the chat.
        nonce: of its marks.
        tokenizer: the model's.
        ask: encodes a completion.
    """
    first, *others = re.split(_marks(nonce), rendered(turn, tokenizer))
    pieces: list[int | str] = [*tokenizer.encode(first)]
    for number, text in zip(others[::2], others[1::2], strict=True):
        pieces += [_mark(nonce, number), *tokenizer.encode(text)]
    place = f"[prompt-{nonce}]"
    request = ask(msgspec.structs.replace(written_out(turn, tokenizer), prompt=place))
    body = request.body.replace(msgspec.json.encode(place), msgspec.json.encode(pieces))
    return msgspec.structs.replace(request, body=body)


def ids_text(text: str, tokenizer: Tokenizer) -> str:
    """Token ids of a text, with commas."""
    return ",".join(map(str, tokenizer.encode(text)))


def reader_of(dialect: Dialect) -> AnswerOf:
    """Reads the visible text of answers in a dialect, or all their token ids."""

    def answer(reads: Reads, as_ids: bool) -> str:
        deltas = read_stream(reads, dialect).deltas
        if as_ids:
            return ",".join(str(token) for _, delta in deltas for token in delta.token_ids or ())
        return "".join(delta.text for _, delta in deltas if delta.kind is TokenKind.TEXT)

    return answer
