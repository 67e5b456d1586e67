"""Prometheus metrics in their own registry, updated once per step on the event loop."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bakeoff.reference_engine.core.outputs import Phases, StepReport
from bakeoff.reference_engine.core.request import FinishReason
from bakeoff.reference_engine.serving.openai_api.bulk_histogram import BulkHistogram

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
    """Metrics of GET /metrics: under vLLM's names if vLLM has the figure, else under ours. Times are seconds.

    Args:
        model_name: label of every series, as in vLLM.
    """

    def __init__(self, model_name: str) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        self._model_name = model_name
        self._running = self._gauge("vllm:num_requests_running", "Requests that hold KV blocks")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests that wait for their first or next turn")
        self._used_ratio = self._gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1")
        self._used_blocks = self._gauge("reference_engine_kv_cache_used_blocks", "KV blocks in use")
        self._total_blocks = self._gauge("reference_engine_kv_cache_total_blocks", "KV blocks in the pool")
        self._prompt_tokens = self._counter(
            "vllm:prompt_tokens", "Prompt tokens of requests that got their first token"
        )
        self._generation_tokens = self._counter("vllm:generation_tokens", "Output tokens")
        self._preemptions = self._counter("vllm:num_preemptions", "Times a request lost its blocks")
        self._looked_up_tokens = self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache, once per request"
        )
        self._cached_tokens = self._counter(
            "vllm:prefix_cache_hits", "Prompt tokens found there, which are not computed again"
        )
        self._computed_tokens = self._counter(
            "reference_engine_computed_tokens", "Tokens through the model, recomputed ones included"
        )
        self._swaps = self._counter("reference_engine_swaps", "Preemptions whose blocks went to host memory and back")
        self._held = self._counter(
            "reference_engine_kv_held_token_steps",
            "Tokens for which held KV blocks have room, summed over steps, of which one in some is looked at",
        )
        self._filled = self._counter(
            "reference_engine_kv_filled_token_steps", "Those of them that are there; the rest is wasted"
        )
        self._reserved = self._counter(
            "reference_engine_kv_reserved_token_steps",
            "Those of the rest that the same request may still fill; what is left is internal fragmentation",
        )
        self._lost = self._counter(
            "reference_engine_kv_lost_token_steps", "Tokens for which blocks have room that nobody can ever hold"
        )
        self._evicted_blocks = self._counter(
            "reference_engine_prefix_cache_evicted_blocks",
            "Blocks that could be found until they were taken for something else",
        )
        self._verifications = self._optional(
            "vllm:spec_decode_num_drafts", "Sequences whose drafts were verified, by step"
        )
        self._drafted = self._optional("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted and verified")
        self._accepted = self._optional("vllm:spec_decode_num_accepted_tokens", "Those of them that were right")
        self._accepted_at = self._optional(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Those that were right, by place", "position"
        )
        self._finished = Counter(
            "vllm:request_success",
            "Requests that ended, by reason",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        wait, gap = _WAIT_BUCKETS_S, _GAP_BUCKETS_S
        self._step_s = self._seconds("reference_engine_step_seconds", "Duration of a step", _STEP_BUCKETS_S)
        self._queue_s = self._seconds("vllm:request_queue_time_seconds", "From arrival to first computation", wait)
        self._ttft_s = self._seconds("vllm:time_to_first_token_seconds", "From arrival to first token", wait)
        self._gap_s = BulkHistogram(
            "vllm:inter_token_latency_seconds",
            "Between two tokens of a request",
            {"model_name": model_name},
            gap,
            self.registry,
        )
        self._e2e_s = self._seconds("vllm:e2e_request_latency_seconds", "From arrival to last token", wait)
        self._prefill_s = self._seconds(
            "vllm:request_prefill_time_seconds", "From first computation to first token", wait
        )
        self._decode_s = self._seconds("vllm:request_decode_time_seconds", "From first to last token", wait)
        self._num_blocks = 1
        self._latest: dict[int, StepReport] = {}  # by engine

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _optional(self, name: str, text: str, *labels: str) -> Counter:
        """A counter that appears with its first use."""
        return Counter(name, text, ["model_name", *labels], registry=self.registry)

    def _seconds(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        whole = Histogram(name, text, ["model_name"], registry=self.registry, buckets=buckets)
        return whole.labels(self._model_name)

    def set_num_blocks(self, num_blocks: int) -> None:
        """Sets the number of KV blocks of all engines."""
        self._num_blocks = num_blocks
        self._total_blocks.set(num_blocks)

    def observe(self, replica: int, report: StepReport) -> None:
        """Adds one step of one engine."""
        self._latest[replica] = report
        used_blocks = sum(latest.used_blocks for latest in self._latest.values())
        self._running.set(sum(latest.running for latest in self._latest.values()))
        self._waiting.set(sum(latest.waiting for latest in self._latest.values()))
        self._used_blocks.set(used_blocks)
        self._used_ratio.set(used_blocks / self._num_blocks)
        if not report.computed_tokens:
            return
        self._step_s.observe(report.duration_s)
        self._computed_tokens.inc(report.computed_tokens)
        self._prompt_tokens.inc(report.prompt_tokens)
        self._generation_tokens.inc(len(report.outputs))
        self._preemptions.inc(report.preemptions)
        self._swaps.inc(report.swaps)
        if report.occupancy is not None:
            self._held.inc(report.occupancy.held)
            self._filled.inc(report.occupancy.filled)
            self._reserved.inc(report.occupancy.reserved)
            self._lost.inc(report.occupancy.lost)
        self._looked_up_tokens.inc(report.looked_up_tokens)
        self._cached_tokens.inc(report.cached_tokens)
        self._evicted_blocks.inc(report.evicted_blocks)
        if report.drafted:
            self._observe_drafts(report)
        for queue_s in report.queue_times_s:
            self._queue_s.observe(queue_s)
        self._gap_s.observe_all([output.gap_s for output in report.outputs if output.gap_s is not None])
        for output in report.outputs:
            if output.phases is not None:
                self._observe_phases(output.phases, output.finish_reason, is_first=output.gap_s is None)

    def _observe_drafts(self, report: StepReport) -> None:
        self._verifications.labels(self._model_name).inc(report.drafted[0])
        self._drafted.labels(self._model_name).inc(sum(report.drafted))
        self._accepted.labels(self._model_name).inc(sum(report.accepted))
        for place, count in enumerate(report.accepted):
            self._accepted_at.labels(self._model_name, str(place)).inc(count)

    def _observe_phases(self, phases: Phases, finish_reason: FinishReason | None, *, is_first: bool) -> None:
        """Records phases; requests that are ended from outside have no last token and are left out of totals."""
        if is_first:
            self._ttft_s.observe(phases.e2e_s)
        if finish_reason is not None:
            self._e2e_s.observe(phases.e2e_s)
            self._prefill_s.observe(phases.prefill_s)
            self._decode_s.observe(phases.decode_s)
            self._finished.labels(self._model_name, finish_reason.value).inc()

    def count_finished(self, reason: FinishReason, number: int = 1) -> None:
        """Counts requests that the engine did not end itself: stop strings, disconnected clients, failures."""
        self._finished.labels(self._model_name, reason.value).inc(number)

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
