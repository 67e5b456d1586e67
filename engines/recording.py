"""Commands to an engine that records: its steps or its kernels."""

from bakeoff.engines.dialects import failures
from bakeoff.engines.errors import StepLogMissing
from bakeoff.engines.server import Server

_LIMIT_S = 120.0
"""An engine writes a trace before it answers."""


async def ask_recorder(server: Server, path: str) -> bytes:
    """POST to ``path``; returns the body of the answer.

    Raises:
        StepLogMissing: the server refuses, or does not answer in time.
    """
    status, body = await server.ask("POST", path, timeout_s=_LIMIT_S)
    if status != 200:
        raise StepLogMissing(failures.refusal(status, body) if status else "it does not answer")
    return body
