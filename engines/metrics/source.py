"""Where an engine tells how it sees the load, and what its names mean. Plain data: the sampler gets it as an order.

Names of a frame, the same for every engine; what an engine does not tell is absent:

================================  ===========================================================================
``running``, ``waiting``          requests in the batch, and in the queue before it (gauges)
``kv_usage_share``                of the KV cache, 0 to 1 (gauge)
``preemptions_total``             requests that lost their KV cache and began again
``prefix_queries_tokens_total``   prompt tokens that were looked for in the prefix cache
``prefix_hits_tokens_total``      those that were found
``drafted_tokens_total``          tokens that speculation proposed
``accepted_tokens_total``         those that were right
``prompt_tokens_total``           prompt tokens served
``output_tokens_total``           tokens generated
``ttft_s``, ``itl_s``, ``e2e_s``  histograms in seconds: ``_sum``, ``_count``, ``_le_<bound>`` (cumulative)
``queue_s``, ``prefill_s``,       histograms of a request's phases: before it was scheduled, from there to its
``decode_s``                      first token, from there to its last
================================  ===========================================================================

An engine that keeps only the sum of a phase, and no histogram, tells ``prefill_s_sum`` and the like among its values;
it is then divided by the requests that the client saw answered. Counters and histograms begin at 0 where a page shows
them only after their first use.
"""

import msgspec

GAUGES = ("running", "waiting", "kv_usage_share")
COUNTERS = (
    "preemptions_total", "prefix_queries_tokens_total", "prefix_hits_tokens_total", "drafted_tokens_total",
    "accepted_tokens_total", "prompt_tokens_total", "output_tokens_total",
)  # fmt: skip
HISTOGRAMS = ("ttft_s", "itl_s", "e2e_s", "queue_s", "prefill_s", "decode_s")


class Series(msgspec.Struct, frozen=True):
    """One number of a Prometheus page: the sum over every series of that name that has these labels.

    Of our names that end in ``_share`` it is the mean: two replicas with half-full caches are half full.

    Attributes:
        name: as the page spells it, ``_total`` included.
        labels: which a series must have, with these values.
        scale: what it is multiplied by to get our unit.
    """

    name: str
    labels: dict[str, str] = {}
    scale: float = 1.0


class Histogram(msgspec.Struct, frozen=True):
    """A histogram of a Prometheus page, summed over the series with these labels; a summary's sum and count do too.

    Attributes:
        name: without ``_bucket``, ``_sum``, ``_count``.
        labels: which a series must have, with these values.
        scale: from its unit to seconds.
    """

    name: str
    labels: dict[str, str] = {}
    scale: float = 1.0


class Prometheus(msgspec.Struct, frozen=True, tag="prometheus"):
    """A page in Prometheus' text format; reading it changes nothing.

    Attributes:
        path: of the page.
        values: gauges and counters by our name; several series are added up.
        histograms: by our name.
    """

    values: dict[str, tuple[Series, ...]]
    histograms: dict[str, Histogram] = {}
    path: str = "/metrics"
    port: int | None = None
    """Where the page is not on the server's own port."""


class DrainedIterations(msgspec.Struct, frozen=True, tag="iterations"):
    """TensorRT-LLM's ``GET /metrics``: a JSON list of the iterations since the last call; reading empties it."""

    path: str = "/metrics"


MetricsSource = Prometheus | DrainedIterations
