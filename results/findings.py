"""Findings about a trial: typed codes with parameters, stored with the run."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from bakeoff.results.finding_codes import Cause, FindingCode

Parameter = str | int | float
"""Numbers are in the unit given by the suffix of the parameter's name."""


class Severity(StrEnum):
    """Effect of a finding on its trial."""

    INVALID = "invalid"
    """The trial supports no metric."""
    WARNING = "warning"
    """The trial may be VALID, with a caveat."""
    NOTE = "note"
    """A fact that changes neither the verdict nor what the numbers mean."""


class Finding(msgspec.Struct, frozen=True):
    """One finding of one trial."""

    code: FindingCode
    severity: Severity
    parameters: dict[str, Parameter] = {}


def invalid(code: FindingCode, **parameters: Parameter) -> Finding:
    """Make a finding that invalidates its trial."""
    return Finding(code, Severity.INVALID, parameters)


def warning(code: FindingCode, **parameters: Parameter) -> Finding:
    """Make a finding that does not invalidate its trial."""
    return Finding(code, Severity.WARNING, parameters)


def note(code: FindingCode, **parameters: Parameter) -> Finding:
    """Make a finding that only informs."""
    return Finding(code, Severity.NOTE, parameters)


REJECTIONS = frozenset({FindingCode.NOT_FOUND, FindingCode.NOT_AUTHORISED, FindingCode.REDIRECTED})
"""Failures that every later request of the engine would meet too: a key, name or address is wrong."""


def is_of_surroundings(findings: Iterable[Finding]) -> bool:
    """Whether the client or the machine caused all of these, so that another attempt may have none."""
    return all(finding.code.cause in {Cause.CLIENT, Cause.MACHINE} for finding in findings)


def is_against_engine(findings: Iterable[Finding]) -> bool:
    """Whether the engine caused a trial to be INVALID: evidence against it, not missing evidence."""
    return any(f.severity is Severity.INVALID and f.code.cause is Cause.ENGINE for f in findings)
