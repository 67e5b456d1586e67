"""The objects behind the fixture of :mod:`bakeoff.harness.pytest_plugin`; imported when the first test uses it."""

from bakeoff.harness.testing.bakeoff import Bakeoff
from bakeoff.harness.testing.measured import NO_BASELINE, Measured, NoVerdict
from bakeoff.harness.testing.summary import summary

__all__ = ["NO_BASELINE", "Bakeoff", "Measured", "NoVerdict", "summary"]
