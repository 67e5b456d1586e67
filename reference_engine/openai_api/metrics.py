"""Prometheus metrics in a registry of their own, updated once per step on the event loop."""

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from reference_engine.config import EngineConfig
from reference_engine.request import FinishReason
from reference_engine.timing import StepTimes

if TYPE_CHECKING:
    from reference_engine.engine import StepReport  # imports torch, which the server must not wait for

_STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 60.0, 120.0),
)
_GAP_BUCKETS_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02),
    *(0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0),
)


class Metrics:
    """What GET /metrics shows. Names begin with `reference_engine_` and go on as vLLM's do; times are seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._running = self._gauge("requests_running", "Requests that hold KV blocks")
        self._waiting = self._gauge("requests_waiting", "Requests that wait for their first or next turn")
        self._used_ratio = self._gauge("kv_cache_usage_ratio", "KV blocks in use, 0 to 1")
        self._used_blocks = self._gauge("kv_cache_used_blocks", "KV blocks in use")
        self._total_blocks = self._gauge("kv_cache_total_blocks", "KV blocks in the pool")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that got their first token")
        self._generation_tokens = self._counter("generation_tokens", "Output tokens")
        self._computed_tokens = self._counter("computed_tokens", "Tokens through the model, recomputed ones included")
        self._preemptions = self._counter("preemptions", "Times a request lost its blocks and was recomputed")
        self._swaps = self._counter("swaps", "Those of them whose blocks went to host memory and came back")
        self._held = self._counter(
            "kv_held_token_steps", "Tokens for which held KV blocks have room, summed over steps"
        )
        self._filled = self._counter("kv_filled_token_steps", "Those of them that are there; the rest is wasted")
        self._looked_up_tokens = self._counter(
            "prefix_cache_queries_tokens", "Prompt tokens looked up in the prefix cache, once per request"
        )
        self._cached_tokens = self._counter("prefix_cache_hit_tokens", "Prompt tokens found there, not computed again")
        self._evicted_blocks = self._counter(
            "prefix_cache_evicted_blocks", "Blocks that could be found until they were taken for something else"
        )
        self._finished = Counter(
            "reference_engine_requests_finished",
            "Requests that ended, by reason",
            ["finished_reason"],
            registry=self.registry,
        )
        self._step_s = self._seconds("step", "Duration of a step", _STEP_BUCKETS_S)
        wait, gap = _WAIT_BUCKETS_S, _GAP_BUCKETS_S
        self._queue_s = self._seconds("request_queue", "From arrival to first computation", wait)
        self._ttft_s = self._seconds("time_to_first_token", "From arrival to first token", wait)
        self._gap_s = self._seconds("inter_token_latency", "Between two tokens of a request", gap)
        self._e2e_s = self._seconds("e2e_request_latency", "From arrival to last token", wait)
        self._prefill_s = self._seconds("request_prefill_time", "From first computation to first token", wait)
        self._decode_s = self._seconds("request_decode_time", "From first to last token", wait)
        self._num_blocks = 1

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"reference_engine_{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"reference_engine_{name}", text, registry=self.registry)

    def _seconds(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"reference_engine_{name}_seconds", text, registry=self.registry, buckets=buckets)

    def set_config(self, config: EngineConfig) -> None:
        """Takes the pool size from the resolved configuration."""
        self._num_blocks = config.num_blocks or 1
        self._total_blocks.set(self._num_blocks)

    def observe(self, report: "StepReport") -> None:
        """Takes in one step."""
        self._running.set(report.running)
        self._waiting.set(report.waiting)
        self._used_blocks.set(report.used_blocks)
        self._used_ratio.set(report.used_blocks / self._num_blocks)
        if not report.computed_tokens:
            return
        self._step_s.observe(report.duration_s)
        self._computed_tokens.inc(report.computed_tokens)
        self._prompt_tokens.inc(report.prompt_tokens)
        self._generation_tokens.inc(len(report.outputs))
        self._preemptions.inc(report.preemptions)
        self._swaps.inc(report.swaps)
        self._held.inc(report.held_tokens)
        self._filled.inc(report.filled_tokens)
        self._looked_up_tokens.inc(report.looked_up_tokens)
        self._cached_tokens.inc(report.cached_tokens)
        self._evicted_blocks.inc(report.evicted_blocks)
        for queue_s in report.queue_times_s:
            self._queue_s.observe(queue_s)
        self._observe_times(report.times)
        for output in report.outputs:
            if output.finish_reason is not None:
                self._finished.labels(output.finish_reason.value).inc()

    def _observe_times(self, times: StepTimes) -> None:
        """Requests that are ended from outside have no last token, and no place in what is taken of whole lives."""
        for ttft_s in times.ttfts_s:
            self._ttft_s.observe(ttft_s)
        for gap_s in times.gaps_s:
            self._gap_s.observe(gap_s)
        for phases in times.ended:
            self._e2e_s.observe(phases.e2e_s)
            self._prefill_s.observe(phases.prefill_s)
            self._decode_s.observe(phases.decode_s)

    def count_finished(self, reason: FinishReason, number: int = 1) -> None:
        """Requests that the engine did not end itself: stop strings, clients that went away, failures."""
        self._finished.labels(reason.value).inc(number)

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
