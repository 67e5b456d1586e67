"""Errors of claims."""

from bakeoff.harness.errors import HarnessError


class BadClaim(HarnessError):
    """A claim file is malformed, or there is no such claim."""
