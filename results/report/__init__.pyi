from .calibration_table import print_calibration
from .compare_table import print_comparison
from .cost_table import print_costs
from .frontier_table import print_frontier
from .grid_table import print_grid
from .history_table import print_history
from .html import render_html, write_html
from .search_lines import print_search
from .terminal import print_summary

__all__ = [
    "print_calibration",
    "print_comparison",
    "print_costs",
    "print_frontier",
    "print_grid",
    "print_history",
    "print_search",
    "print_summary",
    "render_html",
    "write_html",
]
