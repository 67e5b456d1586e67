"""A portrait as data, for programs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from harness.portraits.bins import Binned, second_bins, whole_bins
from harness.portraits.figures import absent, in_a_sentence
from harness.portraits.subject import Subject


def as_data(subject: Subject) -> dict[str, Any]:
    """Everything that is shown, as JSON holds it: figures, bins, curve and anchors."""
    portrait = subject.portrait
    return {
        "name": portrait.name,
        "target": subject.target,
        "options": dict(subject.options),
        "seed": subject.seed,
        "sessions": len(portrait.turns),
        "requests": len(portrait.input_tokens),
        "tokenizer": subject.tokenizer,
        "summary": in_a_sentence(portrait),
        "notes": list(portrait.notes),
        "figures": portrait.figures,
        "absent": absent(portrait),
        "arrivals": {
            **_per_bin(portrait.arrivals_per_bin, portrait.bin_s),
            "opening": _per_bin(portrait.opening_per_bin, portrait.opening_bin_s),
        },
        "input_tokens": _bins(whole_bins(portrait.input_tokens)),
        "output_tokens": _bins(whole_bins(portrait.output_tokens)),
        "turns": _bins(whole_bins(portrait.turns)),
        "think_s": _bins(second_bins(portrait.think_s)),
        "prefix_cache": {
            "block_tokens": portrait.curve_block_tokens,
            "sample_share": portrait.curve_sample_share,
            "curve": msgspec.to_builtins(portrait.curve),
        },
        "anchors": [
            {
                **msgspec.to_builtins(anchor),
                "value": portrait.figures.get(anchor.metric),
                "met": subject.met(anchor),
            }
            for anchor in portrait.anchors
        ],
    }


def _per_bin(counts: Sequence[int], bin_s: int) -> dict[str, Any]:
    return {"bin_s": bin_s, "counts": list(counts)}


def _bins(binned: Binned) -> dict[str, Any]:
    return {"total": binned.total, "logarithmic": binned.log, "bins": msgspec.to_builtins(binned.bins)}
