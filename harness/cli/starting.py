"""``bakeoff engines start``: start one engine as a run would, until Ctrl-C."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from bakeoff.harness.cli.engines import engines_app
from bakeoff.harness.cli.exits import EXIT_INTERRUPTED, EXIT_OK
from bakeoff.harness.cli.options import Json

if TYPE_CHECKING:
    from bakeoff.engines import Engine, EngineSpec, Model
    from bakeoff.harness.conduct.engine_start import EngineUnderTest

__all__ = ["engines_app"]

Options = Annotated[list[str] | None, cyclopts.Parameter(name="--option", negative="")]
Settings = Annotated[list[str] | None, cyclopts.Parameter(name="--spec", negative="")]


@engines_app.command
def start(
    adapter: str,
    *engine_args: str,
    model: str,
    port: int | None = None,
    option: Options = None,
    spec: Settings = None,
    environment: str | None = None,
    log: Path | None = None,
    json: Json = False,
) -> int:
    """Start an engine exactly as a run would, until Ctrl-C.

    Parameters
    ----------
    adapter
        Adapter of the engine; see bakeoff engines list.
    engine_args
        Extra command-line arguments for the engine, after --.
    model
        Known model name (bakeoff models list), or path of a checkpoint folder or GGUF file.
    port
        Port on 127.0.0.1. Default: a free one.
    option
        Adapter option as key=value, with the value in TOML; repeat the option for several.
    spec
        Setting that all engines share as key=value, such as max_num_seqs=8; repeat the option for several.
    environment
        Python environment of the engine: an installed environment's name, or a venv folder.
    log
        File to append the engine's output to. Default: a new temporary file.
    json
        Print the server's address and description as one line of JSON.
    """
    import asyncio

    import uvloop

    from bakeoff.engines import Deployment, engine
    from bakeoff.harness.cli.listing import named_model
    from bakeoff.harness.traffic.profile.selection import parse_options

    served = named_model(model)
    deployment = Deployment(environment=environment, port=port, args=list(engine_args))
    chosen = engine(adapter, served, parse_options(option or []), _spec(spec or []), deployment)
    log_file = log or _new_log(adapter)
    sys.stderr.write(f"starting {adapter}; its output: {log_file}\n")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_interrupted(chosen, served, port, log_file, json=json))


async def _until_interrupted(engine: "Engine", model: "Model", port: int | None, log: Path, *, json: bool) -> int:
    """Run the engine until Ctrl-C or SIGTERM.

    Raises:
        EngineError: it did not start, or died.
    """
    import asyncio
    import signal

    from bakeoff.engines import pick_port
    from bakeoff.harness.conduct.engine_start import started
    from bakeoff.harness.host.signals import stop_signals

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, *stop_signals()):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    status = EXIT_INTERRUPTED
    try:
        async with started(engine, engine.adapter, model, pick_port(port), log) as under_test:
            status = EXIT_OK  # from now on Ctrl-C is the normal way to stop
            _print(under_test, log, json=json)
            await under_test.server.ended.wait()
            death = under_test.server.died()
            assert death is not None
            raise death
    except asyncio.CancelledError:
        return status


def _print(under_test: "EngineUnderTest", log: Path, *, json: bool) -> None:
    import shlex

    import msgspec

    description, server = under_test.description, under_test.server
    if json:
        line = {"url": server.base_url, "model": under_test.engine.model_id, "pid": server.pid, "log": str(log),
                "version": description.version, "argv": description.argv, "env": description.env,
                "start_s": server.start_s}  # fmt: skip
        sys.stdout.write(f"{msgspec.json.encode(line).decode()}\n")
    else:
        ready = "" if server.start_s is None else f", ready after {server.start_s:.1f} s"
        sys.stdout.write(f"{description.adapter} {description.version or '(no version)'} at {server.base_url}{ready}\n")
        sys.stdout.write(
            f"model: {under_test.engine.model_id}\nargv: {shlex.join(description.argv)}\nCtrl-C stops it\n"
        )
    sys.stdout.flush()


def _spec(pairs: list[str]) -> "EngineSpec":
    """Parse shared settings from ``key=value`` pairs."""
    from bakeoff.engines import EngineSpec
    from bakeoff.engines.errors import BadOption
    from bakeoff.harness.traffic.profile.selection import parse_options
    from bakeoff.workloads.options import typed_options

    values: dict[str, Any] = parse_options(pairs)
    return typed_options(EngineSpec, values, "spec", BadOption)


def _new_log(adapter: str) -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix=f"bakeoff-{adapter}-"), "engine.log")
