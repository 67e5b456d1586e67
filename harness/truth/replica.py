"""What a server that acts as a replica of an engine shows of itself: vLLM's metrics page, and its prefix cache.

Names, types and bounds of buckets are those of vLLM 0.32 (``vllm/v1/metrics/loggers.py``).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import sub

import msgspec

from bakeoff.harness.truth.answered import Answered, Ending, ReplicaAnswered
from bakeoff.harness.truth.payloads import reply
from bakeoff.harness.truth.schedule import to_ns
from bakeoff.harness.truth.timetable import Timetable
from bakeoff.results.units import NS_PER_S

_TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


class _Histogram:
    """Counts of times by bucket.

    Args:
        name: on the page.
        bounds_s: upper bounds of the buckets but the last, in seconds.
    """

    def __init__(self, name: str, bounds_s: Sequence[float]) -> None:
        self.name = name
        self.bounds_s = bounds_s
        self._bounds_ns = [to_ns(bound_s) for bound_s in bounds_s]
        self.totals = [0] * (len(bounds_s) + 1)
        """For each bucket, the times up to its bound."""
        self.sum_ns = 0

    def add(self, *times_ns: int) -> None:
        """Count times together: the gaps of an answer of 1,000 tokens take a tenth of a millisecond."""
        ordered = sorted(times_ns)
        for i, bound_ns in enumerate(self._bounds_ns):
            self.totals[i] += bisect_right(ordered, bound_ns)
        self.totals[-1] += len(ordered)
        self.sum_ns += sum(ordered)


class Replica:
    """One replica: its figures, and its calls beside those of completions.

    Prompt tokens are counted with the first token of an answer, generated tokens and latencies at its end, latencies
    only if it is complete. What an answer that is not streamed took counts as time to its first token.

    Args:
        number: from 1.
        model: label of the page's series.
        timetable: of the server.
    """

    def __init__(self, number: int, model: str, timetable: Timetable) -> None:
        self._number = number
        self._model = model
        self._timetable = timetable
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._ttft_s = _Histogram("vllm:time_to_first_token_seconds", _TTFT_BOUNDS_S)
        self._itl_s = _Histogram("vllm:inter_token_latency_seconds", _ITL_BOUNDS_S)
        self._e2e_s = _Histogram("vllm:e2e_request_latency_seconds", _REQUEST_BOUNDS_S)
        self._queue_s = _Histogram("vllm:request_queue_time_seconds", _REQUEST_BOUNDS_S)
        self._prefill_s = _Histogram("vllm:request_prefill_time_seconds", _REQUEST_BOUNDS_S)
        self._decode_s = _Histogram("vllm:request_decode_time_seconds", _REQUEST_BOUNDS_S)

    def reply(self, method: str, path: str) -> bytes | None:
        """The reply to one of its own calls; None for any other."""
        if (method, path) == ("GET", "/metrics"):
            return reply(200, self._page().encode(), content_type="text/plain; version=0.0.4")
        if (method, path) == ("POST", "/reset_prefix_cache"):
            cache = self._timetable.cache
            return reply(200, {"success": cache is None or cache.clear()})
        return None

    def record(self, answered: Answered) -> ReplicaAnswered:
        """Count an answer that has ended; returns its line of the log."""
        begun_ns = answered.begun_ns or answered.start_ns
        queue_ns = begun_ns - answered.start_ns
        times_ns = answered.written_ns
        if times_ns:
            self._prompt_tokens += answered.prompt_tokens
            self._generated_tokens += _generated(answered, self._timetable.script.schedule.tokens_per_chunk)
        if times_ns and answered.ending is Ending.COMPLETE:
            self._queue_s.add(queue_ns)
            self._ttft_s.add(times_ns[0] - answered.start_ns)
            self._prefill_s.add(times_ns[0] - begun_ns)
            self._decode_s.add(times_ns[-1] - times_ns[0])
            self._e2e_s.add(times_ns[-1] - answered.start_ns)
            self._itl_s.add(*map(sub, times_ns[1:], times_ns))
        return ReplicaAnswered(**msgspec.structs.asdict(answered), replica=self._number, queue_s=queue_ns / NS_PER_S)

    def _page(self) -> str:
        timetable, cache = self._timetable, self._timetable.cache
        label = f'engine="0",model_name="{self._model.translate(_ESCAPES)}"'
        figures = [
            ("vllm:num_requests_running", "gauge", timetable.running),
            ("vllm:num_requests_waiting", "gauge", timetable.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", cache.usage if cache else 0.0),
            ("vllm:prefix_cache_queries_total", "counter", cache.queried_tokens if cache else 0),
            ("vllm:prefix_cache_hits_total", "counter", cache.hit_tokens if cache else 0),
            ("vllm:num_preemptions_total", "counter", 0),
            ("vllm:prompt_tokens_total", "counter", self._prompt_tokens),
            ("vllm:generation_tokens_total", "counter", self._generated_tokens),
        ]
        lines = [line for name, kind, value in figures for line in _series(name, kind, [(f"{name}{{{label}}}", value)])]
        for whole in (self._ttft_s, self._itl_s, self._e2e_s, self._queue_s, self._prefill_s, self._decode_s):
            lines += _series(whole.name, "histogram", _samples(whole, label))
        if cache:
            size = f'block_size="{cache.block_tokens}",num_gpu_blocks="{cache.num_blocks}",enable_prefix_caching="True"'
            lines += _series("vllm:cache_config_info", "gauge", [(f"vllm:cache_config_info{{{label},{size}}}", 1)])
        return "\n".join([*lines, ""])


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _generated(answered: Answered, tokens_per_chunk: int) -> int:
    if answered.ending is Ending.COMPLETE or not answered.stream:
        return answered.tokens
    return min(answered.tokens, len(answered.written_ns) * tokens_per_chunk)


def _series(name: str, kind: str, samples: Sequence[tuple[str, float]]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield from (f"{sample} {float(value)!r}" for sample, value in samples)


def _samples(whole: _Histogram, label: str) -> list[tuple[str, float]]:
    bounds = [*map(repr, whole.bounds_s), "+Inf"]
    return [
        *((f'{whole.name}_bucket{{{label},le="{le}"}}', n) for le, n in zip(bounds, whole.totals, strict=True)),
        (f"{whole.name}_count{{{label}}}", whole.totals[-1]),
        (f"{whole.name}_sum{{{label}}}", whole.sum_ns / NS_PER_S),
    ]
