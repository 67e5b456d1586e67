"""TensorRT-LLM's draining JSON: what each of its iterations did, made into a frame.

A record is told once. So what counts events is added up here, and one process only may read a server: whatever another
one reads is gone. The server keeps the newest 1000 records; the first page may hold all of those from before anybody
read, its slow first iterations among them, and is the base from which the sums count on.
"""

import msgspec


class _KvCache(msgspec.Struct, rename="camel"):
    """Blocks; the last two are sums since the engine's start, as the engine keeps them."""

    max_num_blocks: float = 0
    used_num_blocks: float = 0
    tokens_per_block: float = 0
    reused_blocks: float | None = None
    missed_blocks: float | None = None


class _Batch(msgspec.Struct, rename="camel"):
    num_paused_requests: float | None = None
    """Requests that lost their blocks in this iteration."""


class _Speculation(msgspec.Struct, rename="camel"):
    """Of this iteration."""

    num_draft_tokens: float = 0
    num_accepted_tokens: float = 0


class _Iteration(msgspec.Struct, rename="camel"):
    """One record; of its times nothing is taken, since the first iterations compile and capture."""

    iter: int | None = None
    num_active_requests: float | None = None
    num_queued_requests: float | None = None
    kv_cache_stats: _KvCache | None = None
    inflight_batching_stats: _Batch | None = None
    spec_decoding_stats: _Speculation | None = None


class IterationReader:
    """Reads the pages of one server, one after the other; names are those of :mod:`engines.metrics.source`.

    Gauges are those of the newest record, and absent where a page holds none: nothing was computed since the last one.
    Prefix counts are in whole blocks. How many tokens were served no record says: prompt tokens that were found in the
    cache are not among those computed, and the first token of an answer belongs to no generation request.

    Attributes:
        lost: records that were missing between those seen, by their numbers: the queue overflowed, or somebody else
            reads this server too. The sums then are too small. Some versions number iterations that they do not tell.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._decoder = msgspec.json.Decoder(list[_Iteration])
        self._last: int | None = None
        self._totals: dict[str, float | None] = {}

    def read(self, body: bytes) -> dict[str, float | None]:
        """What a page says, and what all pages so far add up to.

        Raises:
            ValueError: it is no list of records.
        """
        try:
            records = self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"no list of iterations: {error}") from error
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
        if cache is not None and cache.reused_blocks is not None and cache.missed_blocks is not None:
            looked_for = cache.reused_blocks + cache.missed_blocks
            self._totals["prefix_queries_tokens_total"] = looked_for * cache.tokens_per_block
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
