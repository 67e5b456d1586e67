"""Findings of every code, for tests to which the measured values do not matter."""

from string import Formatter

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Parameter, Severity
from bakeoff.results.text.findings import OPTIONS

_TEXTS = {"detail", "counter", "outcome", "error", "latency", "gpu", "power_basis", "cache", "example", "tool"}


def parameters_of(code: FindingCode) -> set[str]:
    """The fields of a code's sentence, without the options that it names."""
    return {field for _, field, _, _ in Formatter().parse(code.template) if field is not None} - OPTIONS.keys()


def void(code: FindingCode, **parameters: Parameter) -> Finding:
    """A finding that makes its trial INVALID; missing parameters are made up."""
    return Finding(code, Severity.INVALID, {**_made_up(code), **parameters})


def remark(code: FindingCode, **parameters: Parameter) -> Finding:
    """The same as a warning."""
    return Finding(code, Severity.WARNING, {**_made_up(code), **parameters})


def _made_up(code: FindingCode) -> dict[str, Parameter]:
    return {name: name if name in _TEXTS else _number(name) for name in sorted(parameters_of(code))}


def _number(name: str) -> Parameter:
    if name == "last_in_flight":
        return 95.0
    return 0.25 if name.endswith(("_s", "_share", "_flight", "_turn")) else 3
