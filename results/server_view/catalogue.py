"""Every number of the engine's view by name, with its definition; the report, the frames and the JSON all read this."""

import msgspec

from results.metrics.catalogue import Unit
from results.server_view.split import PARTS


class Seen(msgspec.Struct, frozen=True):
    """One number's identity.

    Attributes:
        name: key in frames and JSON.
        title: heading.
        unit: of the value.
        definition: one clause.
    """

    name: str
    title: str
    unit: Unit
    definition: str


HISTOGRAMS = ("ttft", "itl", "e2e", "queue", "prefill", "decode")
"""Of the frame, without their unit."""
QUANTILES = (("p50", 0.5), ("p99", 0.99))
WITH_QUANTILES = ("ttft", "itl")
GAUGES = (
    ("running", "running", Unit.COUNT, "requests in the batch"),
    ("waiting", "waiting", Unit.COUNT, "requests in the queue before it"),
    ("kv_usage_share", "KV cache", Unit.SHARE, "share of the KV cache in use"),
)

_COUNTED = (
    Seen("server_preemptions", "preemptions", Unit.COUNT, "requests that lost their KV cache and began again"),
    Seen("server_prefix_hit_share", "prefix hits", Unit.SHARE, "of the prompt tokens looked up, those found"),
    Seen("server_acceptance_share", "accepted", Unit.SHARE, "of the tokens drafted, those that were right"),
    Seen("server_prompt_tokens", "prompt tokens", Unit.COUNT, "prompt tokens as the engine counted them"),
    Seen("server_output_tokens", "output tokens", Unit.COUNT, "output tokens as the engine counted them"),
)  # fmt: skip
_CLIENT = (
    Seen(
        "client_ttft_mean_s", "TTFT mean, client", Unit.SECONDS, "mean of a₁ − s over measured requests that ended ok"
    ),
    Seen("client_itl_mean_s", "ITL mean, client", Unit.SECONDS, "Σ (a_k − a₁) / Σ (N − n₁) over the same"),
    Seen("client_e2e_mean_s", "E2E mean, client", Unit.SECONDS, "mean of a_k − s over the same"),
)
_MEANT = {
    "ttft": "TTFT", "itl": "ITL", "e2e": "E2E", "queue": "queue", "prefill": "prefill", "decode": "decode",
}  # fmt: skip


def _gauges() -> list[Seen]:
    return [
        Seen(f"server_{name}_{kind}", f"{title}, {kind}", unit, f"{what}: {word} of the readings in the window")
        for name, title, unit, what in GAUGES
        for kind, word in (("mean", "the mean"), ("peak", "the largest"))
    ]


def _means() -> list[Seen]:
    names = [(name, _MEANT[name]) for name in HISTOGRAMS]
    return [
        Seen(f"server_{name}_mean_s", f"{title} mean, engine", Unit.SECONDS, f"mean of the engine's {title} histogram")
        for name, title in names
    ]


def _quantiles() -> list[Seen]:
    found: list[Seen] = []
    for name in WITH_QUANTILES:
        for label, _ in QUANTILES:
            title = f"{_MEANT[name]} {label}, engine"
            where = f"{label} of the engine's {_MEANT[name]} histogram, interpolated inside its bucket"
            found.append(Seen(f"server_{name}_{label}_s", title, Unit.SECONDS, where))
            width = f"width of that bucket: the {label} lies in it, and nothing finer is known"
            found.append(Seen(f"server_{name}_{label}_width_s", f"{title}, bucket", Unit.SECONDS, width))
    return found


def _parts() -> list[Seen]:
    return [Seen(part.name, part.title, Unit.SECONDS, part.meaning) for part in PARTS]


SEEN: dict[str, Seen] = {
    seen.name: seen for seen in (*_gauges(), *_COUNTED, *_means(), *_quantiles(), *_CLIENT, *_parts())
}
"""All of them, in display order."""
