"""Messages between the server and an engine process, and their framing.

MessagePack by msgspec, each message prefixed by its length in four bytes. Both ends have the same version, since one
starts the other.
"""

import dataclasses
from collections.abc import Iterator

import msgspec

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.outputs import StepReport
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.scheduling.limits import Limits

_LENGTH_BYTES = 4
_ENCODER = msgspec.msgpack.Encoder()


class Start(msgspec.Struct, tag="start"):
    """The first command: the configuration of the engine to load."""

    config: EngineConfig


class AnswerSpec(msgspec.Struct, array_like=True):
    """One answer to a prompt: its request id and sampling parameters."""

    request_id: str
    sampling: SamplingParams


class Sent(msgspec.Struct, array_like=True):
    """A request with its siblings; see `Request`."""

    prompt: list[int]
    answers: list[AnswerSpec]
    cache_salt: str | None
    priority: int
    arrival_s: float | None
    block_hashes: bytes

    @classmethod
    def of(cls, leader: Request) -> "Sent":
        """A request with its siblings."""
        answers = [AnswerSpec(member.request_id, member.sampling) for member in (leader, *leader.siblings)]
        return cls(leader.token_ids, answers, leader.cache_salt, leader.priority, leader.arrival_s, leader.block_hashes)

    def request(self) -> Request:
        """Decodes the request with its siblings."""
        leader, *siblings = [
            Request(answer.request_id, self.prompt, answer.sampling, self.cache_salt, priority=self.priority)
            for answer in self.answers
        ]
        for member in (leader, *siblings):
            member.arrival_s = self.arrival_s
            member.block_hashes = self.block_hashes
        leader.siblings = tuple(siblings)
        return leader


class Add(msgspec.Struct, tag="add"):
    """Requests to add together, before the next step."""

    requests: list[Sent]


class Cancel(msgspec.Struct, tag="cancel"):
    """Cancels requests."""

    request_ids: list[str]


class Reset(msgspec.Struct, tag="reset"):
    """Empties the prefix cache."""


class StartProfile(msgspec.Struct, tag="start-profile"):
    """Starts a profile of the step loop; answered by `Done`."""

    call: int


class StopProfile(msgspec.Struct, tag="stop-profile"):
    """Writes the profile; answered by `Done`."""

    call: int


class StartStepLog(msgspec.Struct, tag="start-step-log"):
    """Starts a log of all steps; answered by `Done`."""

    call: int


class StopStepLog(msgspec.Struct, tag="stop-step-log"):
    """Ends the log of all steps; answered by `Done`."""

    call: int


Command = Start | Add | Cancel | Reset | StartProfile | StopProfile | StartStepLog | StopStepLog


class Facts(msgspec.Struct, frozen=True):
    """Description of a loaded engine.

    Attributes:
        config: fully resolved.
        limits: of requests.
        eos_token_ids: every id that ends a sequence.
        torch_version: of its torch.
        kernels: of `kernel_kind`.
        pid: of its process.
    """

    config: EngineConfig
    limits: Limits
    eos_token_ids: frozenset[int]
    torch_version: str
    kernels: str
    pid: int


class Ready(msgspec.Struct, tag="ready"):
    """The first message of an engine that has been loaded.

    Attributes:
        facts: about it.
        arrived: requests that its warm-up added.
    """

    facts: Facts
    arrived: int


class Failed(msgspec.Struct, tag="failed"):
    """The last message of an engine that could not be loaded, or has crashed.

    Attributes:
        is_users: whether the user can fix it.
        message: one line.
    """

    is_users: bool
    message: str


class Refused(msgspec.Struct, tag="refused"):
    """A request that never arrives in the queue: refused, or cancelled before; other fields as of `RequestError`."""

    request_id: str
    message: str
    status: int
    param: str | None
    code: str | None


class Done(msgspec.Struct, tag="done"):
    """The end of a command that is answered.

    Attributes:
        call: its number.
        result: of the command; None if it failed.
        error: why it failed.
    """

    call: int
    result: str | None = None
    error: str | None = None


Notice = StepReport | Ready | Failed | Refused | Done


def frame(message: Command | Notice) -> bytes:
    """Encodes a message with its length."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


@dataclasses.dataclass(slots=True)
class Frames:
    """Splits a byte stream into message bodies."""

    _rest: bytearray = dataclasses.field(default_factory=bytearray)

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Message bodies that `data` completes."""
        self._rest += data
        begin, end = 0, len(self._rest)
        while end - begin >= _LENGTH_BYTES:
            body = begin + _LENGTH_BYTES
            after = body + int.from_bytes(self._rest[begin:body], "little")
            if after > end:
                break
            yield bytes(self._rest[body:after])
            begin = after
        del self._rest[:begin]
