"""Everything this package raises on purpose.

    ReferenceEngineError
    ├── UserMistakeError           the caller can fix it: exit status 2, or HTTP 4xx
    │   ├── CheckpointError        a model file that is missing, cut short, or of an unsupported kind
    │   ├── ConfigError            settings that contradict each other or this machine
    │   ├── PortInUseError         the address is taken
    │   └── RequestError           one HTTP request that cannot be served; carries status, param, code
    │       └── QueueFullError     the queue is full: HTTP 429
    ├── EngineUnavailableError     loading, stopping or crashed: HTTP 503, in-flight requests get it too
    └── EngineBugError             an invariant of the engine is broken; please report it
        └── BlockAccountingError   a block freed twice, leaked, or shared by mistake

Each message is one line and says what to do.
"""


class ReferenceEngineError(Exception):
    """The root: catch it to catch all errors that this package raises on purpose."""


class UserMistakeError(ReferenceEngineError):
    """The caller can fix it; the message says how."""


class CheckpointError(UserMistakeError):
    """A model file is missing, cut short, or of a kind that this engine does not read."""


class ConfigError(UserMistakeError):
    """Settings contradict each other, the model or this machine."""


class PortInUseError(UserMistakeError):
    """Another process listens on the wanted address."""


class RequestError(UserMistakeError):
    """One HTTP request cannot be served as asked.

    Attributes:
        status: the HTTP status of the answer, 4xx.
        param: the request field at fault, or None.
        code: a short machine-readable reason, or None.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class QueueFullError(RequestError):
    """The queue is full; the same request can succeed a little later."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; try again later", status=429, code="queue_full")


class EngineUnavailableError(ReferenceEngineError):
    """The engine is loading, stopping or has crashed; nothing is wrong with the request."""


class EngineBugError(ReferenceEngineError):
    """An invariant of this package is broken; the message names it."""


class BlockAccountingError(EngineBugError):
    """A KV block was freed twice, leaked, or handed to two owners."""
