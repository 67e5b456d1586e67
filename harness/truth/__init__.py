"""Truth: a null engine that answers on an exact schedule and remembers when it really did.

Driving it with the measuring client shows the client's own error: ``make bench-client``.
"""

from harness.truth.schedule import Schedule
from harness.truth.server import TruthServer, truth_process

__all__ = ["Schedule", "TruthServer", "truth_process"]
