"""One virtual answer: its bytes, and when they arrive."""

import functools
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import msgspec

from bakeoff.harness.truth.answered import CompletionRequest
from bakeoff.harness.truth.payloads import Payloads
from bakeoff.harness.truth.schedule import Schedule
from bakeoff.harness.virtual.draws import Batched
from bakeoff.harness.virtual.engine import Fault, VirtualEngine
from bakeoff.results.records import StreamEnd
from bakeoff.results.units import NS_PER_S

STATUS = {Fault.HTTP_429: 429, Fault.HTTP_500: 500, Fault.HTTP_503: 503, Fault.HTTP_401: 401, Fault.HTTP_302: 302}
"""HTTP status of each fault that has one."""
HANGS = frozenset({Fault.STALL, Fault.SILENT})
"""Faults after which an exchange lasts until the client drops it."""
_HALF = frozenset({Fault.RESET, Fault.ERROR_EVENT, Fault.STALL})
_TOKENLESS = frozenset({Fault.SILENT, Fault.EMPTY})


class Answer(NamedTuple):
    """One answer; times are nanoseconds since it got a slot.

    Attributes:
        chunk_ns: when each chunk with tokens is sent; of an answer in a batch, those that have been sent.
        chunk_tokens: tokens in each chunk, due ones included.
        close_ns: when the exchange ends; None if that is not known yet, or if it lasts until the client drops it.
        end: how the transport sees the end.
        closing: the last bytes.
    """

    chunk_ns: list[int]
    chunk_tokens: list[int]
    close_ns: int | None
    end: StreamEnd
    closing: bytes


def answer_of(
    request: CompletionRequest, tokens: int, fault: Fault | None, *, engine: VirtualEngine, factor: float, rng: Random
) -> Answer:
    """Draw an answer; one in a batch has no times yet.

    Args:
        request: the request.
        tokens: length of the answer without a fault.
        fault: its fault, other than those in :data:`STATUS`.
        engine: model of its timing.
        factor: multiplies every time.
        rng: source of randomness.
    """
    size = engine.tokens_per_chunk
    chunks = math.ceil(tokens / size)
    counts = [size] * (chunks - 1) + [tokens - size * (chunks - 1)]
    sent = 0 if fault in _TOKENLESS else max(1, chunks // 2) if fault in _HALF else chunks
    end = StreamEnd.RESET if fault is Fault.RESET else StreamEnd.COMPLETE
    closing = _closing(request, tokens, fault, engine)
    if isinstance(engine.service, Batched):
        return Answer([], counts[:sent], None, end, closing)
    ready_s = engine.service.token_times_s(tokens, rng)
    due_ns = [round(s * factor * NS_PER_S) for s in (*ready_s[size - 1 : -1 : size], ready_s[-1])]
    close_ns = None if fault in HANGS else due_ns[min(sent, chunks - 1)]
    return Answer(due_ns[:sent], counts[:sent], close_ns, end, closing)


def chunks_of(request: CompletionRequest, counts: Sequence[int], engine: VirtualEngine) -> Iterator[bytes]:
    """The events of an answer's chunks with these counts of tokens."""
    first = 0
    for tokens in counts:
        yield _chunk(request.model, first if engine.kinds else 0, tokens, engine.kinds, chat=request.chat)
        first += tokens


def refusal(fault: Fault) -> bytes:
    """The body of a reply with an error status."""
    return msgspec.json.encode({"error": {"message": "the virtual engine wants this", "code": STATUS[fault]}})


def _closing(request: CompletionRequest, tokens: int, fault: Fault | None, engine: VirtualEngine) -> bytes:
    payloads = _payloads(request.model, engine.kinds, engine.hidden_tokens, chat=request.chat)
    if fault is None or fault is Fault.EMPTY:
        usage = msgspec.structs.replace(request, tokens=0 if fault else tokens)
        return payloads.finish() + payloads.usage(usage) + payloads.done
    return payloads.error() + payloads.done if fault is Fault.ERROR_EVENT else b""


@functools.lru_cache(maxsize=64)
def _payloads(model: str, kinds: str, hidden_tokens: int, *, chat: bool) -> Payloads:
    return Payloads(Schedule(kinds=kinds, hidden_tokens=hidden_tokens), chat=chat, model=model, chunked=False)


@functools.lru_cache(maxsize=1024)
def _chunk(model: str, first: int, tokens: int, kinds: str, *, chat: bool) -> bytes:
    return _payloads(model, kinds, 0, chat=chat).tokens(first, tokens)
