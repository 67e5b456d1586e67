"""Alias of :mod:`results.text.format` for ``harness``; delete it once its imports name the new place."""

from results.text.format import (
    ABSENT,
    duration_text,
    interval_text,
    plain,
    plain_block,
    scale_for,
    short_text,
    value_text,
)

__all__ = [
    "ABSENT",
    "duration_text",
    "interval_text",
    "plain",
    "plain_block",
    "scale_for",
    "short_text",
    "value_text",
]
