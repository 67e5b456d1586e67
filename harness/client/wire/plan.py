"""Traffic in wire format: encoded requests and their times, in files that each worker reads incrementally.

Everything that depends on the engine or the workload is decided before the load; a worker's memory does not grow with
the length of the plan.
"""

import contextlib
import functools
import itertools
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bakeoff.engines.dialects import REQUEST_ID, SESSION_ID, Dialect, HttpRequest
from bakeoff.harness.client.wire.bodies import Body, shared_bodies
from bakeoff.harness.client.wire.live_history import History, MarkedTurn, asking_ids, ids_text, marked
from bakeoff.harness.client.wire.orders import Pool
from bakeoff.harness.client.wire.rendering import asking
from bakeoff.harness.host.threads import check_cancelled
from bakeoff.results.files.frames import FrameAppender, FrameLog
from bakeoff.results.units import NS_PER_S
from bakeoff.workloads import PlannedSession, PromptPlace, Tokenizer
from bakeoff.workloads.graph import Links
from bakeoff.workloads.models import ModelMix

_FLUSH_BYTES = 1 << 22


class WireTurn(msgspec.Struct, frozen=True, array_like=True):
    """One encoded request, with the plan's values for its record."""

    request: HttpRequest
    """Without its body."""
    body: Body
    think_ns: int
    requested_input_tokens: int | None
    requested_output_tokens: int
    check: str | None = None
    expected: str | None = None
    passages: int | None = None
    number: int = 0
    """Position in the whole session, of which some turns may have come before the load."""
    part: float = 1.0
    """Fraction of the answer that is requested, since the rest came before the load."""
    parents: tuple[int, ...] = ()
    """Positions in ``turns`` of the turns whose answers it waits for; empty for the session's start."""
    lags_ns: tuple[int, ...] = ()
    """Put off each parent's end; empty for none."""
    agent: str = ""
    held: tuple[int, ...] = ()
    """Positions in ``turns`` of the turns whose answers under this load its body holds, each at a mark."""
    answer: str = ""
    """The recorded answer, for turns that hold it and do not get another."""
    place: PromptPlace | None = None
    """Which prefix its prompt shares with others."""


class WireSession(msgspec.Struct, frozen=True, array_like=True):
    """A session as encoded turns, each behind those that it waits for.

    Attributes:
        index: position of the first turn in the trial's plan; the others follow it.
        id: the session's name.
        offset_ns: start, from the start of an open loop; None in a closed loop.
        turns: its requests.
        cycle: number of earlier repetitions of its pool.
        nonce: makes the ids of its requests unique.
        play: see :attr:`~bakeoff.workloads.plan.PlannedSession.play`.
        model: its own model, if the workload mixes several.
        as_ids: whether its prompts are token ids.
        traffic_class: its class, if the traffic has several.
    """

    index: int
    id: str
    offset_ns: int | None
    turns: tuple[WireTurn, ...]
    cycle: int = 0
    nonce: str = ""
    play: str = ""
    model: str | None = None
    as_ids: bool = False
    traffic_class: str | None = None

    def request(self, number: int, body: bytes) -> HttpRequest:
        """The request of a turn, with ids in its headers; each repetition of the session is another conversation.

        A session's agents have conversations of their own, each with the id of its first request.
        """
        request = msgspec.structs.replace(self.turns[number].request, body=body)
        filled = {name: value for name, value in request.headers.items() if "{" in value}
        for name, value in filled.items():
            filled[name] = value.replace(SESSION_ID, self._session_id(number)).replace(REQUEST_ID, self._id(number))
        return msgspec.structs.replace(request, headers=request.headers | filled) if filled else request

    def conversation(self, number: int) -> str:
        """Name of the session and the agent of a turn."""
        agent = self.turns[number].agent
        return f"{self.id}/{agent}" if agent else self.id

    def _session_id(self, number: int) -> str:
        """Id of the conversation of a turn: equal in all parts of a play, else that of the agent's first request."""
        agent = self.turns[number].agent
        if self.play:
            return f"{self.nonce}-{self.play}{f'-{zlib.crc32(agent.encode()):08x}' if agent else ''}"
        return self._id(next(first for first, turn in enumerate(self.turns) if turn.agent == agent))

    def _id(self, number: int) -> str:
        return f"{self.nonce}-{(self.index + number) % (1 << 32):08x}"


def new_nonce() -> str:
    """A nonce for the ids of one trial."""
    return secrets.token_hex(6)


class OfClass(NamedTuple):
    """How the requests of a class are encoded, and its own model; None for that of all others."""

    dialect: Dialect
    model: str | None


def wire_sessions(
    sessions: Iterable[PlannedSession],
    dialect: Dialect,
    model: str,
    *,
    first_index: int = 0,
    tokenizer: Tokenizer | None = None,
    logprobs: Callable[[int], bool] | None = None,
    models: ModelMix | None = None,
    classes: Mapping[str, OfClass] | None = None,
    history: History = History.RECORDED,
    nonce: str | None = None,
) -> Iterator[WireSession]:
    """Encode a plan in one engine's dialect.

    Args:
        sessions: the plan.
        dialect: of the engine.
        model: name of the model in requests.
        first_index: index of the first request.
        tokenizer: the model's; renders chats for an engine that takes only text.
        logprobs: whether the request at a position in this plan, from 0, asks for log-probabilities; None for none.
        models: chooses the model of each session; None for ``model``.
        classes: of the sessions, by name; None if they have none.
        history: whether conversations hold the answers of this load instead of the recorded ones; as token ids, they
            need the tokenizer.
        nonce: makes ids unique among all plans whose indices may be equal; None for a new one.
    """
    index, nonce = first_index, nonce or new_nonce()
    dialects = {"": dialect} | {name: of_class.dialect for name, of_class in (classes or {}).items()}
    asks = {name: asking(each, tokenizer) for name, each in dialects.items()}
    as_ids = tokenizer if history is History.LIVE_IDS else None
    for planned in sessions:
        chosen, own = models.of(planned.session.id) if models else None, planned.session.traffic_class
        if classes and own:
            chosen = classes[own].model
        ask = asks[own if classes else ""]
        links = Links.of(planned.session.turns)
        of_session = planned.session.turns
        lived = marked(of_session, nonce) if history.is_live else [MarkedTurn(turn) for turn in of_session]
        requests: list[HttpRequest] = []
        for number, entry in enumerate(lived):
            asked = functools.partial(
                ask, model=chosen or model, logprobs=logprobs is not None and logprobs(index - first_index + number)
            )
            if as_ids is not None:
                requests.append(asking_ids(entry.turn, nonce, as_ids, asked))
                lived[number] = msgspec.structs.replace(entry, answer=ids_text(entry.answer, as_ids))
            else:
                requests.append(asked(entry.turn))
        bodies = shared_bodies([request.body for request in requests], [turn.agent for turn in planned.session.turns])
        turns = tuple(
            WireTurn(
                msgspec.structs.replace(requests[number], body=b""),
                bodies[number],
                round(links.pauses_s[number] * NS_PER_S),
                None if turn.has_images or lived[number].held else turn.input_tokens,
                turn.output_tokens,
                turn.expected.check.value if turn.expected else None,
                turn.expected.value if turn.expected else None,
                len(turn.passages) if turn.passages is not None else None,
                planned.numbers[number] if planned.numbers else number,
                planned.parts[number] if planned.parts else 1.0,
                links.parents[number],
                tuple(round(lag_s * NS_PER_S) for lag_s in turn.lags_s),
                turn.agent,
                lived[number].held,
                lived[number].answer if history.is_live else "",
                planned.places[number] if planned.places else None,
            )
            for number, turn in enumerate(planned.session.turns)
        )
        offset_ns = None if planned.offset_s is None else round(planned.offset_s * NS_PER_S)
        yield WireSession(
            index, planned.session.id, offset_ns, turns, nonce=nonce, play=planned.play, model=chosen,
            as_ids=as_ids is not None, traffic_class=own or None,
        )  # fmt: skip
        index += len(turns)


def write_wire(
    paths: Sequence[Path], sessions: Iterable[WireSession], stride: int | None = None, period_ns: int = 0
) -> int:
    """Distribute sessions over one file per worker, round robin.

    Args:
        paths: of the files.
        sessions: in sending order.
        stride: added to the index of each request when the sessions repeat; None if they are sent once.
        period_ns: added to their offsets.

    Returns:
        how often the files hold the sessions: several times if they repeat and are too few for each worker to have one.
    """
    few: list[WireSession] = []
    cycles = 1

    def repeated() -> Iterator[WireSession]:
        nonlocal cycles
        for session in sessions:
            if len(few) < len(paths):
                few.append(session)
            yield session
        if stride is not None and 0 < len(few) < len(paths):
            cycles = -(-len(paths) // len(few))
            for cycle in range(1, cycles):
                yield from (_again(session, cycle, stride, period_ns) for session in few)

    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(FrameAppender(path)) for path in paths]
        buffered_bytes = 0
        for number, session in enumerate(repeated()):
            check_cancelled()
            files[number % len(files)].append(session)
            buffered_bytes += sum(turn.body.own_size for turn in session.turns)
            if buffered_bytes > _FLUSH_BYTES:
                for file in files:
                    file.flush()
                buffered_bytes = 0
    return cycles


def read_wire(pool: Pool) -> Iterator[WireSession]:
    """The sessions of a pool, one at a time; endless if the pool has a stride."""
    sessions = FrameLog(Path(pool.path), WireSession)
    yield from sessions
    if pool.stride is None or next(iter(sessions), None) is None:
        return
    for repeat in itertools.count(1):
        for session in sessions:
            again = _again(session, repeat, pool.stride, pool.period_ns)
            yield msgspec.structs.replace(again, cycle=session.cycle + repeat * pool.cycles)


def _again(session: WireSession, cycle: int, stride: int, period_ns: int) -> WireSession:
    """A session in a later cycle of its plan."""
    offset_ns = None if session.offset_ns is None else session.offset_ns + cycle * period_ns
    return msgspec.structs.replace(session, index=session.index + cycle * stride, offset_ns=offset_ns, cycle=cycle)
