"""Errors of the engines package.

::

    EngineError
    ├── UnknownEngine     the user's mistake: no adapter of that name
    ├── BadOption         the user's mistake: an option is unknown, of the wrong type or out of range
    ├── ModelNotFound     the user's mistake: no model at that path, or none of that name
    ├── PortInUse         the machine's state: something listens on the wanted port
    ├── NotIdentified     the server's silence: it does not say what it is, or which model it serves
    ├── NotInstalled      the machine's state: the adapter's extra is missing
    ├── InstallFailed     the machine's state: an environment could not be made
    ├── FetchFailed       the network's failure, or a download that is not what was pinned
    ├── NotReady          the engine's failure: it did not get ready in time
    └── EngineDied        the engine's failure: its process ended
        └── OutOfMemory   the same, for lack of memory

Each message is one line that says what to do next; the last three carry the engine's last log lines.
"""

from collections.abc import Sequence


class EngineError(Exception):
    """Root of every error that this package raises on purpose.

    Attributes:
        log_tail: the engine's last log lines, where there is an engine.
    """

    def __init__(self, message: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log_tail = tuple(log_tail)


class UnknownEngine(EngineError):
    """No adapter has that name."""


class BadOption(EngineError):
    """An option is unknown, of the wrong type or out of range."""


class ModelNotFound(EngineError):
    """There is no model at that path or of that name."""


class PortInUse(EngineError):
    """Something listens on the wanted port."""


class NotIdentified(EngineError):
    """A server that runs already does not say what it is, or which model it serves."""


class NotInstalled(EngineError):
    """The packages of an adapter are missing.

    Attributes:
        complaint: what is missing.
        command: the command that installs it; None where none does. The message ends in it.
    """

    def __init__(self, complaint: str, command: str | None = None) -> None:
        super().__init__(f"{complaint}; run: {command}" if command else complaint)
        self.complaint = complaint
        self.command = command


class InstallFailed(EngineError):
    """An environment could not be made."""


class FetchFailed(EngineError):
    """A download failed or is not what was pinned."""


class NotReady(EngineError):
    """The engine did not become ready in time."""


class EngineDied(EngineError):
    """The engine's process ended."""


class OutOfMemory(EngineDied):
    """The engine's process ended for lack of memory."""
