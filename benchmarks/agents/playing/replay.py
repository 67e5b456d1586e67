"""What a client sent for each recorded call, and when."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.agents.playing.recording import Call, Session
from benchmarks.agents.playing.server import Asked

Place = tuple[int, int]
"""Number of a session, and of a call in it."""


class Replay:
    """One client's requests, matched with the recording.

    A client's conversation is the recorded agent whose answers have the same lengths in the same order. If a client
    plays a session again, the first play counts.

    Args:
        recorded: the sessions.
        asked: the requests of the run.

    Attributes:
        sent: the request of each call that was found.
    """

    def __init__(self, recorded: Sequence[Session], asked: Sequence[Asked]) -> None:
        self._recorded = recorded
        self.sent: dict[Place, Asked] = {}
        conversations: defaultdict[str, list[Asked]] = defaultdict(list)
        for request in sorted(asked, key=lambda request: request.arrived_s):
            conversations[request.conversation].append(request)
        by_lengths: dict[tuple[int, ...], list[Asked]] = {}
        for requests in conversations.values():
            by_lengths.setdefault(tuple(request.output_tokens for request in requests), requests)
        for number, session in enumerate(recorded):
            for agent, positions in session.conversations.items():
                requests = by_lengths.get(session.lengths(agent), [])
                self.sent |= {(number, at): request for at, request in zip(positions, requests, strict=False)}

    @property
    def calls(self) -> Iterator[tuple[Place, Call, Asked]]:
        """The calls that were found, in the order of their arrival."""
        for place, request in sorted(self.sent.items(), key=lambda item: item[1].arrived_s):
            yield place, self._recorded[place[0]].calls[place[1]], request

    @property
    def missing(self) -> int:
        """Number of recorded calls that were not found."""
        return sum(len(session.calls) for session in self._recorded) - len(self.sent)

    def gaps_s(self) -> dict[Place, float]:
        """Seconds from the last end of the answers that a call waits for in the recording to its arrival."""
        gaps_s: dict[Place, float] = {}
        for (session, at), call, request in self.calls:
            parents = [self.sent.get((session, parent)) for parent in call.waits_for]
            ends_s = [parent.ended_s for parent in parents if parent is not None]
            if ends_s and len(ends_s) == len(parents):
                gaps_s[session, at] = request.arrived_s - max(ends_s)
        return gaps_s
