"""Reports: runs, comparisons, gates, histories, searches and calibrations as tables, and a run as one offline page."""

from results.report.calibration_table import print_calibration
from results.report.compare_table import print_comparison
from results.report.frontier_table import print_frontier
from results.report.history_table import print_history
from results.report.html import render_html, write_html
from results.report.search_lines import print_search
from results.report.terminal import print_summary

__all__ = [
    "print_calibration",
    "print_comparison",
    "print_frontier",
    "print_history",
    "print_search",
    "print_summary",
    "render_html",
    "write_html",
]
