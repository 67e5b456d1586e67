"""The measuring client: fires requests at their deadlines, stamps what comes back, decodes it afterwards.

``fleet`` starts workers and gives each its share; a ``worker`` is a process that drives one ``transport``; ``decode``
reads what they recorded, when the load is over.
"""

from harness.client.decode import decode_stream
from harness.client.driver import Driver, Issue
from harness.client.fleet import Fleet, LoadResult, local_fleet
from harness.client.http import HttpTransport
from harness.client.orders import Closed, Open
from harness.client.transport import StreamLog, Transport

__all__ = [
    "Closed",
    "Driver",
    "Fleet",
    "HttpTransport",
    "Issue",
    "LoadResult",
    "Open",
    "StreamLog",
    "Transport",
    "decode_stream",
    "local_fleet",
]
