"""The engine process, `python -m bakeoff.reference_engine.serving.core FD`: all commands come over the socket FD."""

import logging
import signal
import socket
import sys


def main() -> None:
    """Serves until the server closes the socket. Ignores signals, which a terminal also sends to the server."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sock = socket.socket(fileno=int(sys.argv[1]))
    from bakeoff.reference_engine.serving.core.loop import serve_engine  # noqa: PLC0415 (imports torch, with signals ignored already)

    serve_engine(sock)


if __name__ == "__main__":
    main()
