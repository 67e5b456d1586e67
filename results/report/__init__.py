"""Reports: a run as terminal tables, as one offline HTML page, and a comparison as a table."""

from results.report.compare_table import print_comparison
from results.report.html import render_html, write_html
from results.report.terminal import print_summary

__all__ = ["print_comparison", "print_summary", "render_html", "write_html"]
