"""The objects behind the fixture of :mod:`harness.pytest_plugin`; imported when the first test uses it."""

from harness.testing.bakeoff import Bakeoff
from harness.testing.measured import NO_BASELINE, Measured, NoVerdict
from harness.testing.summary import summary

__all__ = ["NO_BASELINE", "Bakeoff", "Measured", "NoVerdict", "summary"]
