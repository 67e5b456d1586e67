"""The measuring client: fires requests at their deadlines, stamps what comes back, decodes it afterwards."""

from harness.client.decode import decode_stream
from harness.client.driver import Driver, Issue
from harness.client.transport import HttpTransport, StreamLog, Transport

__all__ = ["Driver", "HttpTransport", "Issue", "StreamLog", "Transport", "decode_stream"]
