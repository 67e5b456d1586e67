"""What a test may ask for, and what it may hold a run to: behind the fixture of :mod:`harness.pytest_plugin`.

Nothing in here is imported before a test uses the fixture.
"""

from harness.testing.bakeoff import Bakeoff
from harness.testing.measured import NO_BASELINE, Measured, NotHeld
from harness.testing.summary import summary

__all__ = ["NO_BASELINE", "Bakeoff", "Measured", "NotHeld", "summary"]
