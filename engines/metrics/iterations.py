"""Reader of TensorRT-LLM's iteration statistics, ``GET /metrics`` of ``trtllm-serve``.

The server returns each record once, so the reader sums event counts itself, and only one process may read a server.
The server keeps the newest 1000 records; the first page can hold records from before the run, so its sums are the
baseline for later ones. Source: ``tensorrt_llm/serve`` and ``IterationStats`` of TensorRT-LLM.
"""

import msgspec


class _KvCache(msgspec.Struct, rename="camel"):
    """Counts of blocks; reused and missed blocks are totals since the engine's start."""

    max_num_blocks: float = 0
    used_num_blocks: float = 0
    tokens_per_block: float = 0
    reused_blocks: float | None = None
    missed_blocks: float | None = None


class _Batch(msgspec.Struct, rename="camel"):
    num_paused_requests: float | None = None
    """Requests preempted in this iteration."""


class _Speculation(msgspec.Struct, rename="camel"):
    """Draft tokens of this iteration."""

    num_draft_tokens: float = 0
    num_accepted_tokens: float = 0
    num_requests_with_draft_tokens: float | None = None


class _Iteration(msgspec.Struct, rename="camel"):
    """One record, without its durations, because the first iterations include compilation and graph capture."""

    iter: int | None = None
    num_active_requests: float | None = None
    num_queued_requests: float | None = None
    kv_cache_stats: _KvCache | None = None
    inflight_batching_stats: _Batch | None = None
    spec_decoding_stats: _Speculation | None = None


class IterationReader:
    """Reads successive pages of one server; names are those of :mod:`bakeoff.engines.metrics.source`.

    Gauges are those of the newest record, and absent if a page is empty because no iteration ran. Prefix counts are
    multiples of the block size. Token throughput cannot be derived: records omit cached prompt tokens and the first
    token of each answer.

    Attributes:
        lost: records missing between those read, by their numbers, because the queue overflowed or another process
            reads the server. The sums are then too small. Some versions also number iterations that they do not
            report.
    """

    def __init__(self) -> None:
        self.lost: int = 0
        self._decoder = msgspec.json.Decoder(list[_Iteration])
        self._last: int | None = None
        self._totals: dict[str, float | None] = {}

    def read(self, body: bytes) -> dict[str, float | None]:
        """Gauges of a page, and totals of all pages so far.

        Raises:
            ValueError: the page is not a list of records.
        """
        try:
            records = self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"not a list of iterations: {error}") from error
        for record in records:
            self._add(record)
        return {**(_gauges(records[-1]) if records else {}), **self._totals}

    def _add(self, record: _Iteration) -> None:
        if record.iter is not None:
            if self._last is not None:
                self.lost += max(0, record.iter - self._last - 1)
            self._last = record.iter
        batch, speculation, cache = record.inflight_batching_stats, record.spec_decoding_stats, record.kv_cache_stats
        if batch is not None and batch.num_paused_requests is not None:
            self._count("preemptions_total", batch.num_paused_requests)
        if speculation is not None:
            self._count("drafted_tokens_total", speculation.num_draft_tokens)
            self._count("accepted_tokens_total", speculation.num_accepted_tokens)
            if speculation.num_requests_with_draft_tokens is not None:
                self._count("verifications_total", speculation.num_requests_with_draft_tokens)
        if cache is not None and cache.reused_blocks is not None and cache.missed_blocks is not None:
            queried = cache.reused_blocks + cache.missed_blocks
            self._totals["prefix_queries_tokens_total"] = queried * cache.tokens_per_block
            self._totals["prefix_hits_tokens_total"] = cache.reused_blocks * cache.tokens_per_block

    def _count(self, name: str, events: float) -> None:
        self._totals[name] = (self._totals.get(name) or 0.0) + events


def _gauges(record: _Iteration) -> dict[str, float | None]:
    cache = record.kv_cache_stats
    values = {
        "running": record.num_active_requests,
        "waiting": record.num_queued_requests,
        "kv_usage_share": cache.used_num_blocks / cache.max_num_blocks if cache and cache.max_num_blocks else None,
    }
    return {name: value for name, value in values.items() if value is not None}
