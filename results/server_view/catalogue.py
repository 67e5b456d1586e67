"""Catalogue of the engine's figures: name, title, unit and definition, shared by report, data frames and JSON."""

import msgspec

from bakeoff.results.metric import Unit
from bakeoff.results.server_view.split import PARTS


class EngineFigure(msgspec.Struct, frozen=True):
    """Identity of one figure.

    Attributes:
        name: column in data frames, key in JSON.
        title: column heading.
        unit: of the value.
        definition: the definition, in one clause.
    """

    name: str
    title: str
    unit: Unit
    definition: str


HISTOGRAMS = ("ttft", "itl", "e2e", "queue", "prefill", "decode")
"""Histogram names in telemetry records, without their unit."""
QUANTILES = (("p50", 0.5), ("p99", 0.99))
WITH_QUANTILES = ("ttft", "itl")
GAUGES = (
    ("running", "running", Unit.COUNT, "requests in the batch"),
    ("waiting", "waiting", Unit.COUNT, "requests queued for the batch"),
    ("kv_usage_share", "KV cache", Unit.SHARE, "fraction of the KV cache in use"),
)

POSITIONED = tuple(f"server_accepted_at_{position}_share" for position in range(8))
"""Figures of the first positions in a draft; engines count from 0."""

_COUNTED = (
    EngineFigure("server_preemptions", "preemptions", Unit.COUNT, "requests that lost their KV cache and restarted"),
    EngineFigure("server_prefix_hit_share", "prefix hits", Unit.SHARE, "fraction of prompt tokens found in the cache"),
    EngineFigure("server_drafted_tokens", "drafted", Unit.COUNT, "draft tokens of speculation that were verified"),
    EngineFigure("server_accepted_tokens", "accepted tokens", Unit.COUNT, "those of them that were accepted"),
    EngineFigure("server_acceptance_share", "accepted", Unit.SHARE, "fraction of drafted tokens that were accepted"),
    EngineFigure("server_verifications", "verifications", Unit.COUNT, "steps of one request that verified its drafts"),
    EngineFigure("server_tokens_per_verification", "tokens/verification", Unit.COUNT, "1 + accepted / verifications"),
    *(
        EngineFigure(
            name, f"accepted at {position}", Unit.SHARE,
            f"fraction of verifications that accepted the draft at position {position}",
        )
        for position, name in enumerate(POSITIONED)
    ),
    EngineFigure("server_prompt_tokens", "prompt tokens", Unit.COUNT, "prompt tokens counted by the engine"),
    EngineFigure("server_output_tokens", "output tokens", Unit.COUNT, "output tokens counted by the engine"),
)  # fmt: skip
_CLIENT = (
    EngineFigure(
        "client_ttft_mean_s", "TTFT mean, client", Unit.SECONDS, "mean of a₁ − s over measured requests that ended ok"
    ),
    EngineFigure("client_itl_mean_s", "ITL mean, client", Unit.SECONDS, "Σ (a_k − a₁) / Σ (N − n₁) over the same"),
    EngineFigure("client_e2e_mean_s", "E2E mean, client", Unit.SECONDS, "mean of a_k − s over the same"),
)
_TITLES = {
    "ttft": "TTFT", "itl": "ITL", "e2e": "E2E", "queue": "queue", "prefill": "prefill", "decode": "decode",
}  # fmt: skip


def _gauges() -> list[EngineFigure]:
    return [
        EngineFigure(
            f"server_{name}_{kind}", f"{title}, {kind}", unit, f"{meaning}: {kind} of the samples in the window"
        )
        for name, title, unit, meaning in GAUGES
        for kind in ("mean", "peak")
    ]


def _means() -> list[EngineFigure]:
    names = [(name, _TITLES[name]) for name in HISTOGRAMS]
    return [
        EngineFigure(
            f"server_{name}_mean_s", f"{title} mean, engine", Unit.SECONDS, f"mean of the engine's {title} histogram"
        )
        for name, title in names
    ]


def _quantiles() -> list[EngineFigure]:
    figures: list[EngineFigure] = []
    for name in WITH_QUANTILES:
        for label, _ in QUANTILES:
            title = f"{_TITLES[name]} {label}, engine"
            definition = f"{label} of the engine's {_TITLES[name]} histogram, interpolated within its bucket"
            figures.append(EngineFigure(f"server_{name}_{label}_s", title, Unit.SECONDS, definition))
            width = f"width of the bucket that contains the {label}: the resolution of that figure"
            figures.append(EngineFigure(f"server_{name}_{label}_width_s", f"{title}, bucket", Unit.SECONDS, width))
    return figures


def _parts() -> list[EngineFigure]:
    return [EngineFigure(part.name, part.title, Unit.SECONDS, part.meaning) for part in PARTS]


ENGINE_FIGURES: dict[str, EngineFigure] = {
    figure.name: figure for figure in (*_gauges(), *_COUNTED, *_means(), *_quantiles(), *_CLIENT, *_parts())
}
"""All figures by name, in display order."""
