"""What rank 0 writes to the pipes of the other ranks: one `Assignment`, then a `Batch` for each step.

A pipe to each, and no collective: nothing is pickled, a message is one write where a broadcast of an object is two
exchanges, it works beside NCCL, which copies GPU memory only, and the end of the pipe tells that rank 0 is gone. In the
other direction come `READY`, twice, and perhaps at last a line that says why a rank gives up.
"""

import dataclasses

import msgspec

from reference_engine.engine.config import EngineConfig
from reference_engine.engine.execution import Batch


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """What a process needs to become a rank.

    Attributes:
        config: with nothing left to decide.
        rank: its number.
        folder: where the ranks meet.
    """

    config: EngineConfig
    rank: int
    folder: str


READY = b""
"""A process has come as far as it can alone: to where the ranks meet, and then to the first step."""

encode = msgspec.msgpack.Encoder(enc_hook=list).encode  # block tables are arrays
decode_assignment = msgspec.msgpack.Decoder(Assignment).decode
decode_batch = msgspec.msgpack.Decoder(Batch).decode
