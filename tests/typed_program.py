"""A program of a user, which type checkers read against the installed package: ``make types``, tests/acceptance/suite.

Each ``assert_type`` fails where a checker sees less than is declared.
"""

import sys
from pathlib import Path
from typing import Any, assert_type

import msgspec

import bakeoff
from bakeoff import Dialect, HttpRequest, OpenAiDialect, ServerEngine, Turn


def measured(url: str) -> bakeoff.Run:
    """Measure a running server at two loads."""
    try:
        run = bakeoff.bench(url=url, concurrency=[1, 8], duration=10.0)
    except bakeoff.RunInterrupted as error:
        sys.exit(str(error))
    except (bakeoff.BadExperiment, bakeoff.EngineError) as error:
        sys.exit(f"nothing was measured: {error}")
    assert_type(run, bakeoff.Run)
    return run


def describe(folder: Path) -> None:
    """Print a stored run in several ways."""
    run = bakeoff.load(folder)
    for cell in run.cells:
        assert_type(cell.engine, str)
        assert_type(cell.failures, tuple[int, int])
        interval = cell.intervals.get("ttft_p50_s")
        if interval is not None:
            assert_type(interval.centre, float)
            print(cell.engine, cell.load, f"{interval.centre:.3f} s")
    for trial in run.finished:
        assert_type(trial.record.id, str)
        assert_type(trial.metrics["ttft_p50_s"].value, float | None)
    print(run.requests.groupby(["engine", "load"]).ttft_s.median())


def from_a_dict() -> bakeoff.Experiment:
    """An experiment without a file."""
    experiment = bakeoff.experiment({
        "name": "two servers",
        "engines": [{"adapter": "vllm", "url": "http://127.0.0.1:8000"}],
        "workload": {"name": "chat"},
        "loads": [{"concurrency": 4}],
    })  # fmt: skip
    assert_type(experiment.repeats, int)
    return experiment


class AcmeOptions(msgspec.Struct, frozen=True):
    """Options of an adapter."""

    threads: int = 4


class AcmeDialect(OpenAiDialect):
    """A server's API, nearly OpenAI's."""

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """The request of a turn."""
        return super().request(turn, model, logprobs=logprobs)


class AcmeEngine(ServerEngine):
    """An adapter of another package."""

    adapter = "acme"
    Options = AcmeOptions
    programs = ("acme-server",)

    @classmethod
    def dialect_for(cls, setup: bakeoff.Setup) -> Dialect:  # noqa: ARG003
        """The API of the server."""
        return AcmeDialect()

    def command(self) -> tuple[str, ...]:
        """The program that serves."""
        return (self.setup.deployment.program or "acme-server",)

    def arguments(self, host: str, port: int, model: str) -> tuple[str, ...]:
        """Its arguments."""
        return ("--listen", f"{host}:{port}", "--model", model, *bakeoff.option_argv(self.setup.options))

    async def describe(self, server: Any) -> dict[str, Any]:
        """What is stored of the server."""
        return await server.get_json("/version") or {}
