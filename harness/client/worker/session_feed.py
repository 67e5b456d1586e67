"""The sessions of a plan, prepared for sending shortly before they are sent."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bakeoff.harness.client.wire.bodies import BodyBuilder
from bakeoff.harness.client.wire.live_history import AnswerOf, filled
from bakeoff.harness.client.wire.plan import WireSession
from bakeoff.harness.client.wire.stream_content import Reads
from bakeoff.harness.client.wire.transport import Transport
from bakeoff.harness.errors import ClientFailed
from bakeoff.results.records import Phase
from bakeoff.workloads.graph import previous

_READ_AHEAD, _READ_AHEAD_BYTES = 32, 1 << 26
"""Most sessions that are prepared in advance; fewer, but at least two, if their requests are large."""
SessionFinished = Callable[[int, int], None]
"""Called at the end of a session with the time, and the pause that its slot makes after a failure."""


class PreparedSession:
    """A session to be sent once, whose next requests the transport has prepared."""

    __slots__ = (
        "_answer_of", "_answers", "_bodies", "_children", "_ended", "_pending", "_prepared", "_ready_ns", "_taken",
        "_transport", "finished", "has_large_bodies", "in_flight", "is_chain", "is_cut", "is_live", "outstanding",
        "phase", "wire",
    )  # fmt: skip

    def __init__(
        self, wire: WireSession, transport: Transport, phase: Phase | None, answer_of: AnswerOf | None = None
    ) -> None:
        self.wire: WireSession = wire
        self._answer_of = answer_of
        self._ended: dict[int, Reads] = {}
        self._answers: dict[int, str] = {}
        self.phase: Phase | None = phase
        self._transport = transport
        self._bodies = BodyBuilder([turn.body for turn in wire.turns])
        self._prepared: dict[int, Any] = {}
        self._taken: set[int] = set()
        self._pending = [len(turn.parents) for turn in wire.turns]
        self._ready_ns = [0] * len(wire.turns)
        self._children: list[list[int]] = [[] for _ in wire.turns]
        for number, turn in enumerate(wire.turns):
            for parent in turn.parents:
                self._children[parent].append(number)
        self.is_chain: bool = all(turn.parents == previous(number) for number, turn in enumerate(wire.turns))
        """Whether each turn waits for the previous one alone."""
        self.outstanding: int = 0
        """Turns that are planned and have not ended: in a pause, or in flight."""
        self.in_flight: int = 0
        """Turns that are in flight."""
        self.is_cut: bool = False
        """Whether a turn was not planned any more."""
        self.finished: SessionFinished = lambda _ended_ns, _pause_ns: None
        self.has_large_bodies: bool = any(turn.body.base is not None for turn in wire.turns)
        """Whether its bodies are large, so that each is built while those before it are answered."""
        self.is_live: bool = any(turn.held for turn in wire.turns)
        """Whether requests hold answers of this load."""
        if self.is_live and answer_of is None:
            raise ClientFailed("it cannot read answers for a live history; install the engine's adapter on its machine")
        self.prepare(self.roots() if self.has_large_bodies or self.is_live else range(len(wire.turns)))

    def prepare(self, numbers: Iterable[int]) -> None:
        """Prepare the requests of some turns, unless they are."""
        for number in numbers:
            if number not in self._prepared and number not in self._taken:
                body, held = self._bodies.build(number), self.wire.turns[number].held
                if held:
                    body = filled(
                        body, self.wire.nonce, {turn: self._answer(turn) for turn in held}, as_ids=self.wire.as_ids
                    )
                request = self.wire.request(number, body)
                self._prepared[number] = self._transport.prepare(request, self.wire.conversation(number))

    def prepare_after(self, number: int) -> None:
        """Prepare the requests that wait for turn ``number``, which is being answered."""
        self.prepare(child for child in self._children[number] if not self.wire.turns[child].held)

    def keep(self, number: int, answer: Reads) -> None:
        """Keep the answer to a turn for those that hold it."""
        self._ended[number] = answer

    def _answer(self, number: int) -> str:
        """A turn's answer; the recorded one if it has none."""
        if (reads := self._ended.pop(number, None)) is not None:
            assert self._answer_of is not None
            self._answers[number] = self._answer_of(reads, self.wire.as_ids)
        return self._answers.get(number) or self.wire.turns[number].answer

    def take(self, number: int) -> Any:  # noqa: ANN401  (opaque to all but the transport)
        """The prepared request of a turn, which is sent once."""
        self.prepare([number])
        self._taken.add(number)
        return self._prepared.pop(number)

    @property
    def body_bytes(self) -> int:
        """Size of its requests' bodies as the plan holds them."""
        return sum(turn.body.own_size for turn in self.wire.turns)

    def roots(self) -> list[int]:
        """The turns that wait for no other."""
        return [number for number, turn in enumerate(self.wire.turns) if not turn.parents]

    def released(self, number: int, ended_ns: int) -> Iterator[tuple[int, int]]:
        """Turns that waited only for turn ``number``, which has ended, and when their pauses begin."""
        for child in self._children[number]:
            turn = self.wire.turns[child]
            lag_ns = turn.lags_ns[turn.parents.index(number)] if turn.lags_ns else 0
            self._ready_ns[child] = max(self._ready_ns[child], ended_ns + lag_ns)
            self._pending[child] -= 1
            if not self._pending[child]:
                yield child, self._ready_ns[child]


class SessionFeed:
    """The sessions of a plan, some prepared in advance so that nothing is decoded between a deadline and its send.

    Args:
        sessions: in sending order.
        transport: prepares their requests.
        phase: recorded with their requests; None for the phase of the whole load.
        answer_of: reads answers, for sessions whose requests hold them; None leaves the recorded ones.
    """

    def __init__(
        self,
        sessions: Iterable[WireSession],
        transport: Transport,
        phase: Phase | None = None,
        answer_of: AnswerOf | None = None,
    ) -> None:
        self._sessions = iter(sessions)
        self._answer_of = answer_of
        self._transport = transport
        self._phase = phase
        self._ready: deque[PreparedSession] = deque()
        self._bytes = 0
        for _ in range(_READ_AHEAD):
            self.refill()

    def next(self) -> PreparedSession | None:
        """The next session; None at the end of the plan."""
        if not self._ready:
            return None
        session = self._ready.popleft()
        self._bytes -= session.body_bytes
        return session

    def peek_offset_ns(self) -> int | None:
        """The offset of the next session; None at the end of the plan."""
        return self._ready[0].wire.offset_ns if self._ready else None

    @property
    def is_parallel(self) -> bool:
        """Whether a session that is prepared may have several requests in flight at once."""
        return not all(session.is_chain for session in self._ready)

    def refill(self) -> None:
        """Prepare one more session if there is room; call this after a send."""
        if len(self._ready) > 1 and self._bytes > _READ_AHEAD_BYTES:
            return
        wire = next(self._sessions, None)
        if wire is not None:
            self._ready.append(PreparedSession(wire, self._transport, self._phase, self._answer_of))
            self._bytes += self._ready[-1].body_bytes
