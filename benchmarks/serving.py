"""Engines as server processes, for scripts that measure what their clients see."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from bakeoff.engines import Deployment, EngineSpec, Model, Server, Setup, launched, pick_port
from bakeoff.engines.adapters.reference import ReferenceEngine, ReferenceOptions

MODEL_NAME = "served"
VLLM_ENVIRONMENT = {"PYTHONPATH": "", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""vLLM must not import this process's packages, and FlashInfer compiles at run time, which needs nvcc."""


@contextlib.asynccontextmanager
async def reference_server(
    model: str,
    log: Path,
    spec: EngineSpec = EngineSpec(),  # noqa: B008  (frozen)
    options: ReferenceOptions = ReferenceOptions(),  # noqa: B008
) -> AsyncGenerator[Server]:
    """Start a server on a free port, yield it once it is ready, and stop it at the end.

    Args:
        model: checkpoint folder.
        log: file for its output.
        spec: settings that all engines share.
        options: of the reference engine alone.

    Raises:
        EngineDied, NotReady: the server does not start.
    """
    launch = ReferenceEngine(Setup(Model(MODEL_NAME, model), spec, options, Deployment())).launch(pick_port())
    assert launch is not None  # None only for an engine that already runs at an address
    async with launched(launch, log) as server:
        yield server


@contextlib.asynccontextmanager
async def truth_server(ttft_ms: float, itl_ms: float, log: Path, *options: str) -> AsyncGenerator[str]:
    """Start ``bakeoff lab truth`` on a free port, yield its address, and stop it at the end.

    Args:
        ttft_ms: time to first token of its answers, in ms.
        itl_ms: gap between their tokens, in ms.
        log: file for its output.
        options: more options of the command.
    """
    port = pick_port()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("bakeoff"), "lab", "truth", "--port", str(port), "--ttft-ms", str(ttft_ms),
            "--itl-ms", str(itl_ms), *options, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            await asyncio.sleep(3)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            await process.wait()
