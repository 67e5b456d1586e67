"""Reads answers with the services' own clients, each in its own environment and process."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bakeoff.engines.environments import RECIPES, Environment, Recipe, install
from tests.acceptance.engines.sdk.reading import Reading

DRIVERS = Path(__file__).parents[1] / "drivers"
SDKS = Recipe(
    "sdks", "", (("openai==3.3.1", "anthropic==0.121.0"),), "openai", disk_bytes=10**9 // 4,
    note="the client libraries of OpenAI and Anthropic, for checks; no engine",
)  # fmt: skip
TGI = "text-generation"


class Job(msgspec.Struct, frozen=True):
    """The input of a driver.

    Attributes:
        base_url: of the server.
        route: the client's method to use.
        bodies: request bodies that our dialect sent, as JSON; the driver sends the same.
    """

    base_url: str
    route: str
    bodies: list[msgspec.Raw]


def environments() -> dict[str, Environment]:
    """The clients' environments; those that are missing are installed."""
    RECIPES.setdefault(SDKS.name, SDKS)  # only checks need it, so it is in no list of recipes
    return {name: install(name, _print_progress) for name in (TGI, SDKS.name)}


async def read_all(python: Path, driver: str, job: Job) -> list[Reading]:
    """The driver's readings, in the order of the bodies."""
    process = await asyncio.create_subprocess_exec(
        str(python), str(DRIVERS / driver), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(msgspec.json.encode(job)), 300)
    if process.returncode != 0:
        raise SystemExit(f"{driver} ended with status {process.returncode}")
    return msgspec.json.decode(output, type=list[Reading])


def bodies_of(requests: Sequence[bytes]) -> list[msgspec.Raw]:
    """Request bodies as parts of a job."""
    return [msgspec.Raw(body) for body in requests]


def _print_progress(message: str, seconds: float) -> None:
    if not seconds:
        print(message, file=sys.stderr, flush=True)
