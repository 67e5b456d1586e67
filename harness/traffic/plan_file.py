"""A plan of sessions in a file, written only as far as it is needed and checked while writing."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bakeoff.harness.host.threads import check_cancelled
from bakeoff.results.files.frames import FrameAppender, FrameLog
from bakeoff.workloads import EndlessCache, PlanHash, PlannedSession, PromptPlace, PromptReader, Turn
from bakeoff.workloads.prefixes import common_length

_FLUSH_BYTES = 1 << 22


class PlanFile:
    """Sessions in send order; written once, read as often as they are sent.

    Args:
        path: of the file.
        plan: generates the sessions, lazily.
        reader: encodes every prompt once, to count its tokens.
        cache: simulates an unlimited prefix cache; plans sent one after the other share it.

    Attributes:
        sessions: written so far, as are the counts below.
        requests: in these sessions.
        prompt_tokens: in their prompts.
        hit_tokens: of these, those that the cache had from earlier prompts.
        output_tokens: requested by them.
        off_length: prompts whose length differs from the one that the workload states.
        off_example: describes the first of these; None if there is none.
        has_ended: whether the plan has no further session.
    """

    def __init__(self, path: Path, plan: Iterator[PlannedSession], reader: PromptReader, cache: EndlessCache) -> None:
        self._path = path
        self._plan = plan
        self._reader = reader
        self._cache = cache
        self._hash = PlanHash()
        self._shape = hashlib.sha256()
        self.sessions = self.requests = self.prompt_tokens = self.output_tokens = self.off_length = 0
        self.hit_tokens: int = 0
        self._turns = 0
        self.off_example: str | None = None
        self.has_ended: bool = False

    @property
    def mean_turn(self) -> float:
        """Mean position of a request in its session, from 0."""
        return self._turns / self.requests if self.requests else 0.0

    @property
    def sha256(self) -> str:
        """Over the bytes of every session written so far, words included."""
        return self._hash.hexdigest()

    @property
    def shape_sha256(self) -> str:
        """Over lengths, order and times of every session written so far."""
        return self._shape.hexdigest()

    def write(self, enough: Callable[["PlanFile"], bool] = lambda _: False) -> None:
        """Write sessions until ``enough`` says so, or the plan has ended."""
        unflushed_bytes = 0
        with FrameAppender(self._path) as file:
            while not self.has_ended and not enough(self):
                check_cancelled()
                planned = next(self._plan, None)
                if planned is None:
                    self.has_ended = True
                    break
                size, places = self._count(planned)
                unflushed_bytes += size
                file.append(msgspec.structs.replace(planned, places=places))
                if unflushed_bytes > _FLUSH_BYTES:
                    file.flush()
                    unflushed_bytes = 0
            file.flush()

    def __iter__(self) -> Iterator[PlannedSession]:
        """The sessions written so far, from the start."""
        return iter(FrameLog(self._path, PlannedSession))

    def unlink(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _count(self, planned: PlannedSession) -> tuple[int, tuple[PromptPlace, ...]]:
        """Add a session to the counts and hashes; returns its approximate size in bytes, and its prompts' places."""
        self.sessions += 1
        self._hash.add(planned)
        turns = [
            (
                turn.input_tokens,
                turn.output_tokens,
                turn.think_s,
                *((turn.parents, turn.lags_s) if turn.parents else ()),
            )
            for turn in planned.session.turns
        ]
        self._shape.update(msgspec.json.encode((planned.session.id, planned.offset_s, turns)))
        size = 0
        places: list[PromptPlace] = []
        last: dict[str, tuple[Turn, Sequence[int]]] = {}
        for number, turn in enumerate(planned.session.turns):
            self._turns += number
            ids = self._reader.ids(turn)
            before = last.get(turn.agent)
            self.hit_tokens += self._cache.add(ids, to_the_token=before is None)
            shared = common_length(before[1], ids) if before else self._cache.last_shared
            places.append(PromptPlace(self._cache.last_block, shared, before is not None and goes_on(before[0], turn)))
            last[turn.agent] = turn, ids
            self.requests += 1
            self.prompt_tokens += len(ids)
            self.output_tokens += turn.output_tokens
            size += len(ids) * 4
            if len(ids) != turn.input_tokens:
                self.off_length += 1
                example = f"{planned.session.id}: {len(ids)} tokens where {turn.input_tokens} were meant"
                self.off_example = self.off_example or example
        return size, tuple(places)


def goes_on(before: Turn, turn: Turn) -> bool:
    """Whether a prompt was written to begin with all of another one."""
    if before.messages is not None and turn.messages is not None:
        return turn.messages[: len(before.messages)] == before.messages
    if before.prompt is not None and turn.prompt is not None and turn.passages is None:
        return turn.prompt.startswith(before.prompt)
    return False
