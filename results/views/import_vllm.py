"""Result files of ``vllm bench serve`` as request records.

For each request the file has the send time, the time to the first chunk with ``choices``, the gaps between such chunks,
and the number of tokens. Chunks without a token count as chunks: if there are more chunks than tokens, the first one of
a chat is taken as the role, and the last one as the finish reason.
"""

import codecs
import gzip
import itertools
import json
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.errors import UNDECODABLE, NotImportable
from bakeoff.results.log.consistency import MAX_SPAN_S, MAX_TOKENS
from bakeoff.results.records import Load, Outcome, Phase, RequestRecord, StreamEnd, TokenSource
from bakeoff.results.units import NS_PER_S
from bakeoff.results.views.imported import UNMEASURED

_GZIP = b"\x1f\x8b"
Spread = Callable[[Sequence[int], int], list[int]]
"""(arrival times, number of tokens) → tokens per chunk."""

_LISTS = ("start_times", "ttfts", "itls", "output_lens", "input_lens", "errors")
_OPTIONAL_LISTS = ("queue_times", "generated_texts", "bakeoff_chunk_tokens")
_MAX_ERROR_CHARS = 300


class VllmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One result; fields of ``--save-detailed`` are None without it."""

    duration: float
    completed: int
    date: str = ""
    backend: str = "openai"
    label: str | None = None
    model_id: str = "unknown"
    request_rate: float | str = "inf"
    burstiness: float = 1.0
    max_concurrency: int | None = None
    start_times: list[float] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    output_lens: list[int] | None = None
    input_lens: list[int] | None = None
    errors: list[str] | None = None
    queue_times: list[float] | None = None
    generated_texts: list[str] | None = None
    bakeoff_chunk_tokens: list[list[int]] | None = None
    """Tokens of each chunk, in files that Bakeoff has exported."""

    @property
    def engine(self) -> str:
        """Label of the engine: the given one, otherwise the backend."""
        return self.label or self.backend

    @property
    def load(self) -> Load:
        """Load level; without rate and limit, all requests were sent at once."""
        if isinstance(self.request_rate, str) or math.isinf(self.request_rate):
            return Load(concurrency=self.max_concurrency or len(self.start_times or ()))
        arrival = "poisson" if self.burstiness == 1 else f"gamma {self.burstiness:g}"
        return Load(rate_per_s=self.request_rate, arrival=arrival, max_in_flight=self.max_concurrency)

    @property
    def chat(self) -> bool:
        """Whether the chat endpoint was used."""
        return "chat" in self.backend

    def column(self, name: str) -> list[Any]:
        """One of the lists that :func:`read_vllm` has checked."""
        column: list[Any] = getattr(self, name)
        return column


def read_vllm(path: Path) -> list[VllmResult]:
    """Results in a file: one, or one per line with ``--append-result``.

    Raises:
        NotImportable: the file cannot be read, is of another format, or lacks the times of single requests.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(_GZIP) else data.removeprefix(codecs.BOM_UTF8)
    except (OSError, EOFError, zlib.error) as error:
        raise NotImportable(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        results = msgspec.json.decode(b"[" + b",".join(lines) + b"]", type=list[VllmResult])
    except UNDECODABLE:
        results = _whole(path, data)
    if not results:
        raise NotImportable(f"{path} is empty: no result of vllm bench serve")
    for result in results:
        _check(path, result)
    return results


def requests_of(result: VllmResult, spread: Spread) -> list[RequestRecord]:
    """The requests of one result, on the clock of its client (Linux: the host's monotonic clock).

    Args:
        result: from :func:`read_vllm`.
        spread: distributes tokens over chunks if there are fewer chunks than tokens.
    """
    return [_request(result, i, spread) for i in range(len(result.column("start_times")))]


def _whole(path: Path, data: bytes) -> list[VllmResult]:
    """The results of a file that is one document, also with numbers that are not finite, as Python writes them."""
    try:
        document = json.loads(data)
        results = document if isinstance(document, list) else [document]
        return msgspec.convert([_without_nulls(result) for result in results], list[VllmResult], strict=False)
    except (*UNDECODABLE, ValueError) as error:
        raise NotImportable(f"{path} is not a result file of vllm bench serve ({error})") from error


def _without_nulls(result: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """A result in which requests without an error have an empty one instead of null."""
    errors = result.get("errors") if isinstance(result, dict) else None
    return result | {"errors": [error or "" for error in errors]} if isinstance(errors, list) else result


def _check(path: Path, result: VllmResult) -> None:
    missing = [name for name in _LISTS if getattr(result, name) is None]
    if missing:
        if missing == ["start_times"]:
            raise NotImportable(
                f"{path} does not say when its requests were sent, so no rate can be computed; measure again with a "
                "version of vllm bench serve that stores start_times"
            )
        raise NotImportable(
            f"{path} holds only the summary of vllm bench serve, without {', '.join(missing)}; "
            "measure again with --save-detailed"
        )
    if len({len(result.column(name)) for name in _LISTS}) != 1 or not result.column("start_times"):
        raise NotImportable(f"{path} is damaged: its lists of requests are empty or differ in length")
    for name in _OPTIONAL_LISTS:
        column = getattr(result, name)
        if column and len(column) != len(result.column("start_times")):
            raise NotImportable(f"{path} is damaged: {name} has {len(column)} entries for other requests than the rest")
    starts_s = result.column("start_times")
    if any(
        length_s < 0 for length_s in (*result.column("ttfts"), *itertools.chain.from_iterable(result.column("itls")))
    ):
        raise NotImportable(f"{path} is damaged: it has times below 0")
    lengths_s = [
        *result.column("ttfts"),
        *itertools.chain.from_iterable(result.column("itls")),
        *(result.queue_times or ()),
    ]
    if not all(abs(length_s) <= MAX_SPAN_S for length_s in lengths_s) or not (
        all(map(math.isfinite, starts_s)) and max(starts_s) - min(starts_s) <= MAX_SPAN_S
    ):
        raise NotImportable(f"{path} is damaged: it has times of more than {MAX_SPAN_S // 86_400} days")
    if not all(0 <= count <= MAX_TOKENS for name in ("input_lens", "output_lens") for count in result.column(name)):
        raise NotImportable(f"{path} is damaged: it has impossible numbers of tokens")


def _request(result: VllmResult, i: int, spread: Spread) -> RequestRecord:
    sent_s: float = result.column("start_times")[i]
    sent_ns = round(sent_s * NS_PER_S)
    # In an open loop, time in the queue counts from the planned time; in a closed loop, the queue is the loop itself.
    queued_s = result.queue_times[i] if result.queue_times and result.load.rate_per_s is not None else 0.0
    tokens, error = result.column("output_lens")[i], result.column("errors")[i]
    ttft_s, gaps_s = result.column("ttfts")[i], result.column("itls")[i]
    is_empty = not error and not tokens and not gaps_s and ttft_s <= 0
    is_unmeasured = not error and not is_empty and ttft_s <= 0
    error = UNMEASURED if is_unmeasured else error
    times = [] if error or is_empty else _arrivals_ns(sent_s, ttft_s, gaps_s)
    known = result.bakeoff_chunk_tokens[i] if result.bakeoff_chunk_tokens else []
    first, last = _token_chunks(len(times), len(known) or tokens, chat=result.chat)
    chunks = times[first:last]
    text = result.generated_texts[i] if result.generated_texts else ""
    counts, source = _counts(chunks, tokens, spread)
    if len(known) == len(chunks) and sum(known) == tokens and min(known, default=0) >= 0:
        counts, source = known, TokenSource.COUNTS
    if text and tokens > 2 * max(len(text.encode()), len(chunks)):
        source = TokenSource.UNPLACED
    return RequestRecord(
        index=i,
        phase=Phase.MEASURED,
        session=str(i),
        turn=0,
        planned_ns=sent_ns - round(queued_s * NS_PER_S),
        sent_ns=sent_ns,
        ended_ns=times[-1] if times else sent_ns,
        outcome=Outcome.EMPTY if is_empty else Outcome.STREAM_ERROR if is_unmeasured else _outcome(error),
        status=None if error else 200,
        end=None if error else StreamEnd.COMPLETE,
        first_byte_ns=times[0] if times else None,
        chunk_ns=chunks,
        chunk_tokens=counts,
        empty_chunk_ns=times[:first] + times[last:],
        token_source=source,
        prompt_tokens=result.column("input_lens")[i] or None,
        output_tokens=tokens or None,
        error=_last_line(error) or None,
        text=text,
    )


def _arrivals_ns(sent_s: float, ttft_s: float, gaps_s: Sequence[float]) -> list[int]:
    return [round((sent_s + after_s) * NS_PER_S) for after_s in itertools.accumulate((ttft_s, *gaps_s))]


def _token_chunks(chunks: int, tokens: int, *, chat: bool) -> tuple[int, int]:
    """Range of the chunks that are taken to have tokens."""
    spare = min(2, max(0, chunks - tokens)) if tokens else 0
    first = 1 if spare == 2 or (spare == 1 and chat) else 0
    return first, chunks - (spare - first)


def _counts(chunks: Sequence[int], tokens: int, spread: Spread) -> tuple[list[int], TokenSource | None]:
    if not chunks:
        return [], None
    if len(chunks) == tokens:
        return [1] * tokens, TokenSource.CHUNKS
    if len(chunks) > tokens:
        return [1] * len(chunks), TokenSource.ASSUMED
    return spread(chunks, tokens), TokenSource.APPORTIONED


def _outcome(error: str) -> Outcome:
    """Outcome from the tool's error text, the only evidence in the file."""
    if not error:
        return Outcome.OK
    if "Cannot connect" in error or "ConnectionRefused" in error:
        return Outcome.REFUSED
    if "TimeoutError" in error:
        return Outcome.TIMEOUT
    if "Never received a valid chunk" in error:
        return Outcome.EMPTY
    return Outcome.STREAM_ERROR if "Traceback" in error else Outcome.HTTP_ERROR


def _last_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1][:_MAX_ERROR_CHARS] if lines else ""
