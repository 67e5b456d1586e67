"""Messages from rank 0 to each other rank over a pipe: one `Assignment`, then a `Batch` per step.

Pipes instead of a broadcast: nothing is pickled, a message is one write (broadcasting an object takes two collectives),
they work beside NCCL, which copies GPU memory only, and a closed pipe tells a rank that rank 0 has exited. A rank
replies with `READY` twice, and with a line of text if it fails.
"""

import dataclasses

import msgspec

from reference_engine.engine.config import EngineConfig
from reference_engine.engine.execution import Batch


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker process needs to become a rank.

    Attributes:
        config: fully resolved.
        rank: of the worker.
        folder: for rendezvous.
    """

    config: EngineConfig
    rank: int
    folder: str


READY = b""
"""Sent by a worker once before it connects to the other ranks, and again before its first step."""

encode = msgspec.msgpack.Encoder(enc_hook=list).encode  # block tables are arrays
decode_assignment = msgspec.msgpack.Decoder(Assignment).decode
decode_batch = msgspec.msgpack.Decoder(Batch).decode
