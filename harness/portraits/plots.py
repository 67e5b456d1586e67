"""Charts of characters: columns in eighths of a character, with an axis."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from results.report.charts.scales import Scale

GUTTER = 8
"""Characters left of a plot: for the number at its top, and the axis."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def density(edges: Sequence[float], masses: Sequence[float], scale: Scale, width: int) -> NDArray[np.float64]:
    """What ``masses`` between ``edges`` come to in each of ``width`` equal parts of an axis; their sum is kept.

    Args:
        edges: one more than masses, rising.
        masses: of each interval, taken to lie evenly in it.
        scale: the axis.
        width: number of parts.
    """
    places = [scale.axis(0.0, float(width)).at(edge) for edge in edges]
    return np.diff(np.interp(np.arange(width + 1), places, [0.0, *np.cumsum(masses)]))


def column_plot(heights: Sequence[float] | NDArray[np.float64], rows: int, top: float, top_text: str) -> list[str]:
    """Columns of one character each, ``rows`` high, above a base line; ``top`` is the height of a full one.

    A column that is not 0 shows at least the thinnest stroke.
    """
    eighths = np.ceil(np.asarray(heights, dtype=np.float64) / (top or 1.0) * rows * 8 - 1e-9).astype(int)
    lines: list[str] = []
    for row in reversed(range(rows)):
        cells = np.clip(eighths - 8 * row, 0, 8).tolist()
        gutter = f"{top_text:>{GUTTER - 2}} ┤" if row == rows - 1 else " " * (GUTTER - 1) + "│"
        lines.append(gutter + "".join(_EIGHTHS[cell] for cell in cells))
    return [*lines, f"{'0':>{GUTTER - 2}} └" + "─" * len(eighths)]


def tick_line(scale: Scale, width: int) -> str:
    """Texts below the base line, each centred under its value; one that would touch its neighbour is left out."""
    axis = scale.axis(0.0, width - 1.0)
    cells = [" "] * (GUTTER + width)
    free = 0
    for value, text in scale.ticks:
        start = min(GUTTER + round(axis.at(value)) - len(text) // 2, len(cells) - len(text))
        if start >= free:
            cells[start : start + len(text)] = text
            free = start + len(text) + 1
    return "".join(cells).rstrip()
