"""Reports: a run as terminal tables, as one offline HTML page, a comparison and a calibration as tables."""

from results.report.calibration_table import print_calibration
from results.report.compare_table import print_comparison
from results.report.html import render_html, write_html
from results.report.terminal import print_summary

__all__ = ["print_calibration", "print_comparison", "print_summary", "render_html", "write_html"]
