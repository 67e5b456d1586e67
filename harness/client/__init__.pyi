from .decode.exchange import decode_stream
from .fleet.fleet import Fleet, LoadResult, local_fleet
from .wire.http import HttpTransport
from .wire.orders import Closed, Open
from .wire.transport import StreamLog, Transport
from .worker.driver import Driver, Issue

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
