"""Messages from rank 0 to each other rank over a pipe: one `Assignment`, then a `Batch` per step.

Pipes instead of a broadcast: nothing is pickled, a message is one write (broadcasting an object takes two collectives),
they work beside NCCL, which copies GPU memory only, and a closed pipe tells a rank that rank 0 has exited. A rank
replies with `READY` twice, and with a line of text if it fails.
"""

import array
import dataclasses
from collections.abc import Callable

import msgspec
import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import as_block_list, block_list
from bakeoff.reference_engine.models.execution import Batch


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


class SentSpan(msgspec.Struct, array_like=True, gc=False):
    """A `Span`, its block tables as the bytes of C arrays.

    As lists of numbers, 64 tables of 512 blocks took 0.45 ms to encode and 1 ms to decode, each step and on each rank.
    """

    tables: list[bytes]
    start: int
    length: int


class SentBatch(msgspec.Struct, array_like=True):
    """A `Batch`; of `previous`, which rank 0 has on its device, only the number of tokens, 0 for None."""

    copies: BlockCopies
    spans: list[SentSpan]
    token_ids: list[int]
    positions: list[int]
    wanted_rows: list[int]
    scored_rows: list[int]
    previous: int


_ENCODER = msgspec.msgpack.Encoder()
encode_assignment = _ENCODER.encode
decode_assignment = msgspec.msgpack.Decoder(Assignment).decode
_DECODER = msgspec.msgpack.Decoder(SentBatch)


def encode_batch(batch: Batch) -> bytes:
    """The message of a step."""
    previous = 0 if batch.previous is None else len(batch.previous)
    spans = [
        SentSpan([as_block_list(table).tobytes() for table in span.tables], span.start, span.length)
        for span in batch.spans
    ]
    sent = SentBatch(
        batch.copies, spans, batch.token_ids, batch.positions, batch.wanted_rows, batch.scored_rows, previous
    )
    return _ENCODER.encode(sent)


def decode_batch(message: bytes, receive: Callable[[int], torch.Tensor]) -> Batch:
    """Decodes a message of `encode_batch`; block tables are C arrays.

    Args:
        message: the bytes.
        receive: gets the tokens of the previous step, of which there are so many, from rank 0.
    """
    sent = _DECODER.decode(message)
    spans = [Span([_table(data) for data in span.tables], span.start, span.length) for span in sent.spans]
    previous = receive(sent.previous) if sent.previous else None
    return Batch(sent.copies, spans, sent.token_ids, sent.positions, sent.wanted_rows, sent.scored_rows, previous)


def _table(data: bytes) -> "array.array[int]":
    table = block_list()
    table.frombytes(data)
    return table
