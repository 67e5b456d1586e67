"""A gate's verdict for whoever reads it: a terminal, a pull request, a CI server's test report, its annotations."""

from results.report.gate.github import annotations, gate_markdown
from results.report.gate.junit import junit_xml
from results.report.gate.regressions import doubt_texts, regression_texts
from results.report.gate.terminal import print_gate

__all__ = ["annotations", "doubt_texts", "gate_markdown", "junit_xml", "print_gate", "regression_texts"]
