"""Sources of an engine's own metrics, and how its names map to ours. Plain data, which is sent to the sampler process.

Our names, the same for every engine; values that an engine does not report are absent:

================================  ===========================================================================
``running``, ``waiting``          requests in the batch and in the queue (gauges)
``kv_usage_share``                fraction of the KV cache in use, 0 to 1 (gauge)
``preemptions_total``             preemptions: requests that lost their KV cache
``prefix_queries_tokens_total``   prompt tokens looked up in the prefix cache
``prefix_hits_tokens_total``      prompt tokens found in the prefix cache
``external_hits_tokens_total``    prompt tokens found in a tier behind it, such as host memory or a store
``drafted_tokens_total``          draft tokens of speculative decoding
``accepted_tokens_total``         accepted draft tokens
``verifications_total``           verifications: steps of one request that checked drafts of it
``accepted_at_<n>_total``         those of them that accepted the draft at position n, from 0
``prompt_tokens_total``           prompt tokens processed, including cached ones
``output_tokens_total``           generated tokens
``ttft_s``, ``itl_s``, ``e2e_s``  histograms in seconds: ``_sum``, ``_count``, ``_le_<bound>`` (cumulative)
``queue_s``, ``prefill_s``,       histograms of a request's phases in seconds: until it is scheduled, until its first
``decode_s``                      token, until its last token
================================  ===========================================================================

An engine that has only the sum of a phase, without a histogram, reports it as a value such as ``prefill_s_sum``, which
is then divided by the number of requests that the client saw answered. Counters and histograms that a page shows only
after their first use start at 0.
"""

import msgspec

GAUGES = ("running", "waiting", "kv_usage_share")
COUNTERS = (
    "preemptions_total", "prefix_queries_tokens_total", "prefix_hits_tokens_total", "external_hits_tokens_total",
    "drafted_tokens_total",
    "accepted_tokens_total", "verifications_total", "prompt_tokens_total", "output_tokens_total",
)  # fmt: skip
POSITIONED = "accepted_at_{}_total"
"""Our name of a counter with one value per position in the draft."""
HISTOGRAMS = ("ttft_s", "itl_s", "e2e_s", "queue_s", "prefill_s", "decode_s")


class Series(msgspec.Struct, frozen=True):
    """One value of a Prometheus page: the sum of all series with this name and these labels.

    For our names that end in ``_share`` it is the mean: two replicas with half-full caches are half full.

    Attributes:
        name: name on the page, including ``_total``.
        labels: labels that a series must have.
        scale: factor that converts to our unit.
    """

    name: str
    labels: dict[str, str] = {}
    scale: float = 1.0


class Histogram(msgspec.Struct, frozen=True):
    """A histogram of a Prometheus page, summed over the series with these labels; a summary gives sum and count.

    Attributes:
        name: name without ``_bucket``, ``_sum`` and ``_count``.
        labels: labels that a series must have.
        scale: factor that converts to seconds.
    """

    name: str
    labels: dict[str, str] = {}
    scale: float = 1.0


class Positions(msgspec.Struct, frozen=True):
    """The counter of a Prometheus page with one series per position in the draft.

    Attributes:
        name: name on the page, including ``_total``.
        label: label that holds the position, a number from 0.
    """

    name: str
    label: str = "position"


class Prometheus(msgspec.Struct, frozen=True, tag="prometheus"):
    """A page in Prometheus' text format; reading it changes nothing.

    Attributes:
        values: gauges and counters by our name; several series are summed.
        accepted_at: accepted drafts by position; None if the engine does not count them.
        histograms: histograms by our name.
        path: path of the page.
        port: port of the page; None for the server's own port.
    """

    values: dict[str, tuple[Series, ...]]
    histograms: dict[str, Histogram] = {}
    accepted_at: Positions | None = None
    path: str = "/metrics"
    port: int | None = None


class DrainedIterations(msgspec.Struct, frozen=True, tag="iterations"):
    """TensorRT-LLM's ``GET /metrics``: a JSON list of the iterations since the last call, which empties it."""

    path: str = "/metrics"


MetricsSource = Prometheus | DrainedIterations
