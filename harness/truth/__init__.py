"""Truth server: a null engine that answers on an exact schedule, injects faults, and records when every chunk left.

What a client measures against it, minus this record, is the client's own error: ``make bench-client``, docs/truth.md.
:mod:`bakeoff.harness.truth.record` turns the record into latencies, and into the stream records of a client without
error.
"""

from bakeoff.harness.truth.answered import Answered, Ending
from bakeoff.harness.truth.process import Truth, truth_process
from bakeoff.harness.truth.schedule import Fault, Schedule
from bakeoff.harness.truth.server import TruthServer

__all__ = ["Answered", "Ending", "Fault", "Schedule", "Truth", "TruthServer", "truth_process"]
