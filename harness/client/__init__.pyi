from .decode import decode_stream
from .driver import Driver, Issue
from .fleet import Fleet, LoadResult, local_fleet
from .http import HttpTransport
from .orders import Closed, Open
from .transport import StreamLog, Transport

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
