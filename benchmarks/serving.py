"""The reference engine as a server process, for scripts that measure what its clients see."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from engines import Deployment, EngineSpec, Model, Server, Setup, launched, pick_port
from engines.adapters.reference import ReferenceEngine, ReferenceOptions

MODEL_NAME = "served"


@contextlib.asynccontextmanager
async def reference_server(
    model: str,
    log: Path,
    spec: EngineSpec = EngineSpec(),  # noqa: B008  (frozen)
    options: ReferenceOptions = ReferenceOptions(),  # noqa: B008
) -> AsyncGenerator[Server]:
    """Start one on a free port, yield it once it serves, and stop it.

    Args:
        model: checkpoint folder.
        log: file for its output.
        spec: settings that all engines share.
        options: its own.

    Raises:
        EngineDied, NotReady: it does not start.
    """
    launch = ReferenceEngine(Setup(Model(MODEL_NAME, model), spec, options, Deployment())).launch(pick_port())
    assert launch is not None  # only an engine with an address of its own is not launched
    async with launched(launch, log) as server:
        yield server
