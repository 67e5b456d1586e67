"""Live history: a call of a conversation holds the answers that the server gave to the calls before it.

A plan is encoded before the load, so that its bodies hold a mark where an answer of the load belongs. The client puts
the answer's text into the place of the mark when the answer has ended; a call that failed leaves the recorded answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bakeoff.engines.dialects import Dialect, TokenKind
from bakeoff.harness.client.decode import Reads, read_stream
from bakeoff.workloads import Turn

AnswerOf = Callable[[Reads], str]
"""The text of an answer; empty if it has none."""


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

    A turn goes on behind the last one of its agent if it begins with its messages and an answer. One that does not,
    since the agent has compacted its history, stays as recorded.

    Args:
        turns: of the session.
        nonce: makes the marks unlike any other text.
    """
    last: dict[str, int] = {}
    result: list[MarkedTurn] = []
    for number, turn in enumerate(turns):
        before = last.get(turn.agent)
        last[turn.agent] = number
        result.append(MarkedTurn(turn))
        if before is None or not _goes_on(turns[before], turn):
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


def _mark(nonce: str, number: int) -> str:
    return f"[answer-{nonce}-{number}]"


def filled(body: bytes, nonce: str, answers: Mapping[int, str]) -> bytes:
    """A JSON body with answers in the places of their marks.

    Args:
        body: as encoded.
        nonce: of the marks.
        answers: text by the position of its turn.
    """
    marks = re.compile(rb"\[answer-" + nonce.encode() + rb"-(\d+)\]")
    return marks.sub(lambda mark: msgspec.json.encode(answers[int(mark[1])])[1:-1], body)


def reader_of(dialect: Dialect) -> AnswerOf:
    """Reads the visible text of answers in a dialect."""

    def text(reads: Reads) -> str:
        deltas = read_stream(reads, dialect).deltas
        return "".join(delta.text for _, delta in deltas if delta.kind is TokenKind.TEXT)

    return text
