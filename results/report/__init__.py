"""Reports: a run as terminal tables, as one offline HTML page, comparisons, histories and calibrations as tables."""

from results.report.calibration_table import print_calibration
from results.report.compare_table import print_comparison
from results.report.history_table import print_history
from results.report.html import render_html, write_html
from results.report.terminal import print_summary

__all__ = ["print_calibration", "print_comparison", "print_history", "print_summary", "render_html", "write_html"]
