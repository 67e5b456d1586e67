"""Small builders shared by the harness tests."""

from collections.abc import Sequence
from typing import Any

from bakeoff.results.records import Outcome, Phase, RequestRecord, StreamEnd, StreamRecord
from bakeoff.workloads import PlannedSession, Session, Turn


class MemoryRecorder:
    """Keeps records in memory."""

    def __init__(self) -> None:
        self.records: list[StreamRecord] = []
        self.unflushed = 0

    def append(self, record: StreamRecord) -> None:
        self.records.append(record)
        self.unflushed += 1

    def flush(self) -> None:
        self.unflushed = 0


def session(name: str, *, turns: int = 1, output_tokens: int = 2, think_s: float = 0.0) -> Session:
    first = Turn(3, output_tokens, prompt="a b c")
    later = Turn(3, output_tokens, prompt="a b c", think_s=think_s)
    return Session(name, (first, *[later] * (turns - 1)))


def closed(count: int, **options: int) -> list[PlannedSession]:
    return [PlannedSession(session(f"s{i}", **options), None) for i in range(count)]


def opened(offsets: Sequence[float], **options: int) -> list[PlannedSession]:
    return [PlannedSession(session(f"s{i}", **options), offset) for i, offset in enumerate(offsets)]


def event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


TOKEN = event('{"choices":[{"index":0,"text":" a","token_ids":[7]}]}')
FINISH = event(
    '{"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
)
DONE = event("[DONE]")


def stream(
    reads: Sequence[tuple[int, bytes]],
    *,
    end: StreamEnd = StreamEnd.COMPLETE,
    status: int | None = 200,
    detail: str | None = None,
) -> StreamRecord:
    """A raw record planned at 0 and sent at 1."""
    return StreamRecord(
        index=0,
        phase=Phase.MEASURED,
        session="s",
        turn=0,
        planned_ns=0,
        ended_ns=reads[-1][0] if reads else 5,
        end=end,
        requested_input_tokens=3,
        requested_output_tokens=2,
        sent_ns=1,
        status=status,
        read_ns=[t for t, _ in reads],
        reads=[body for _, body in reads],
        detail=detail,
    )


def request(index: int = 0, at_s: float | None = None, **changes: Any) -> RequestRecord:
    """An ok request planned at ``at_s``, or at index seconds; first token 0.1 s later, second 0.1 s after that."""
    start = round((index if at_s is None else at_s) * 1_000_000_000)
    fields: dict[str, Any] = {
        "index": index,
        "phase": Phase.MEASURED,
        "session": f"s{index}",
        "turn": 0,
        "planned_ns": start,
        "sent_ns": start + 1_000,
        "ended_ns": start + 200_000_000,
        "outcome": Outcome.OK,
        "chunk_ns": [start + 100_000_000, start + 200_000_000],
        "chunk_tokens": [1, 1],
        "prompt_tokens": 3,
        "requested_input_tokens": 3,
        "output_tokens": 2,
        "requested_output_tokens": 2,
    }
    merged = {**fields, **changes}
    chunks = merged["chunk_ns"]
    if chunks and "ended_ns" not in changes:
        merged["ended_ns"] = max(merged["ended_ns"], *chunks, chunks[-1])
    return RequestRecord(**merged)
