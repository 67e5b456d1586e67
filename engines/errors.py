"""Errors of the engines package.

::

    EngineError
    ├── UnknownEngine     user error: no adapter of that name
    ├── BadAdapter        an adapter of another package lacks a part of its interface
    ├── BadOption         user error: an option is unknown, of the wrong type or out of range
    ├── ModelNotFound     user error: no model at that path, or none of that name
    ├── PortInUse         machine state: something listens on the requested port
    ├── NotIdentified     a running server does not identify itself or its model
    ├── NotInstalled      machine state: the adapter's extra is missing
    ├── InstallFailed     machine state: an environment could not be made
    ├── FetchFailed       a download failed or does not match its pinned hash
    ├── StepLogMissing    a server does not record its steps, or its record is incomplete
    ├── NotReady          engine failure: it did not get ready in time
    └── EngineDied        engine failure: its process ended
        └── OutOfMemory   the same, for lack of memory

Each message is one line that says what to do next; the last three carry the engine's last log lines.
"""

from collections.abc import Sequence


class EngineError(Exception):
    """Base class of this package's errors.

    Attributes:
        log_tail: the engine's last log lines; empty without an engine.
    """

    def __init__(self, message: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log_tail: tuple[str, ...] = tuple(log_tail)


class UnknownEngine(EngineError):
    """No adapter has that name."""


class BadAdapter(EngineError):
    """An adapter of another package lacks a part of its interface."""


class BadOption(EngineError):
    """An option is unknown, of the wrong type or out of range."""


class ModelNotFound(EngineError):
    """There is no model at that path or of that name."""


class PortInUse(EngineError):
    """Something listens on the requested port."""


class NotIdentified(EngineError):
    """A running server does not identify itself or its model."""


class NotInstalled(EngineError):
    """The packages of an adapter are missing.

    Attributes:
        missing: what is missing.
        command: the command that installs it, with which the message ends; None if there is none.
    """

    def __init__(self, missing: str, command: str | None = None) -> None:
        super().__init__(f"{missing}; run: {command}" if command else missing)
        self.missing = missing
        self.command = command


class InstallFailed(EngineError):
    """An environment could not be made."""


class FetchFailed(EngineError):
    """A download failed or does not match its pinned hash."""


class StepLogMissing(EngineError):
    """A server does not record its steps, or its record is incomplete."""


class NotReady(EngineError):
    """The engine did not become ready in time."""


class EngineDied(EngineError):
    """The engine's process ended."""


class OutOfMemory(EngineDied):
    """The engine's process ended for lack of memory."""
