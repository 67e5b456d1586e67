"""A gate's verdict as terminal output, Markdown for a pull request, GitHub annotations and JUnit XML."""

from bakeoff.results.report.gate.github import annotations, gate_markdown
from bakeoff.results.report.gate.junit import junit_xml
from bakeoff.results.report.gate.regressions import doubt_texts, regression_texts
from bakeoff.results.report.gate.terminal import print_gate

__all__ = ["annotations", "doubt_texts", "gate_markdown", "junit_xml", "print_gate", "regression_texts"]
