"""Truth: a null engine that answers on an exact schedule, goes wrong on request, and remembers when it really did what.

Driving it with a client shows the client's own error: ``make bench-client``, docs/truth.md. What its record says in
numbers, and as the stream records of the rest of the house, is in :mod:`harness.truth.record`.
"""

from harness.truth.answered import Answered, Ending
from harness.truth.process import Truth, truth_process
from harness.truth.schedule import Fault, Schedule
from harness.truth.server import TruthServer

__all__ = ["Answered", "Ending", "Fault", "Schedule", "Truth", "TruthServer", "truth_process"]
