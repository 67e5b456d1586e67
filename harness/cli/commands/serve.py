"""The command ``bakeoff serve``: start one engine, until Ctrl-C."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import EXIT_INTERRUPTED, EXIT_OK
from bakeoff.harness.cli.options import Json
from bakeoff.harness.cli.output import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bakeoff.engines import Engine, EngineSpec, Model
    from bakeoff.harness.conduct.engine_start import EngineUnderTest

Options = Annotated[list[str] | None, cyclopts.Parameter(name="--option", negative="")]


Settings = Annotated[list[str] | None, cyclopts.Parameter(name="--spec", negative="")]


_ENGINE_PACKAGES = ("torch", "llguidance", "safetensors", "gguf")


def serve(
    model: str,
    *engine_args: Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)],
    engine: str | None = None,
    port: int | None = None,
    option: Options = None,
    spec: Settings = None,
    environment: str | None = None,
    log: Path | None = None,
    json: Json = False,
) -> int:
    """Serve a model with the reference engine, or with another.

    Runs until Ctrl-C. Every other option goes to the engine; docs/engine.md lists those of the reference engine.

    Examples
    --------
    bakeoff serve smollm2-135m-instruct
    bakeoff serve smollm2-135m-instruct --port 8100 --kv-cache-dtype int8
    bakeoff serve model/ --engine vllm --spec max_num_seqs=8

    Parameters
    ----------
    model
        Known model name (bakeoff models list), or path of a checkpoint folder or GGUF file.
    engine_args
        Options of the engine itself.
    engine
        Adapter of an engine to start as a run would. Default: the reference engine, in this process.
    port
        Port on 127.0.0.1. Default: 8000, with --engine a free one.
    option
        With --engine: adapter option as key=value, with the value in TOML; repeat the option for several.
    spec
        With --engine: setting that all engines share, such as max_num_seqs=8; repeat the option for several.
    environment
        With --engine: Python environment of the engine: an installed environment's name, or a venv folder.
    log
        With --engine: file to append the engine's output to. Default: a new temporary file.
    json
        With --engine: print the server's address and description as one line of JSON.
    """
    if engine is None:
        given = {"--option": option, "--spec": spec, "--environment": environment, "--log": log, "--json": json}
        return _become_server(model, engine_args, port, [name for name, value in given.items() if value])
    import asyncio

    import uvloop

    from bakeoff.engines import Deployment
    from bakeoff.engines import engine as make_engine
    from bakeoff.harness.cli.known_models import named_model
    from bakeoff.harness.traffic.profile.selection import parse_options

    served, deployment = named_model(model), Deployment(environment=environment, port=port, args=list(engine_args))
    chosen = make_engine(engine, served, parse_options(option or []), _spec(spec or []), deployment)
    log_file = log or _new_log(engine)
    print_line(f"starting {engine}; its output: {log_file}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_interrupted(chosen, served, port, log_file, json=json))


def _become_server(model: str, engine_args: "Sequence[str]", port: int | None, foreign: "Sequence[str]") -> int:
    """Replace this process by the reference engine.

    Raises:
        BadExperiment: an option is for engines that are started as a run would.
        NotInstalled: the engine's packages are missing.
    """
    from bakeoff.engines.errors import NotInstalled
    from bakeoff.engines.launcher import require_launching
    from bakeoff.engines.models import KNOWN_MODELS
    from bakeoff.harness.cli.known_models import named_model
    from bakeoff.harness.errors import BadExperiment
    from bakeoff.installation import how_to_install

    if foreign:
        raise BadExperiment(f"{foreign[0]} is for an engine that is started as a run would; add --engine reference")
    require_launching()
    if missing := [name for name in _ENGINE_PACKAGES if importlib.util.find_spec(name) is None]:
        raise NotInstalled(f"bakeoff serve needs {' and '.join(missing)}", how_to_install("engine"))
    is_known = model in KNOWN_MODELS and not Path(model).exists()
    named = ["--served-model-name", model, "--model", str(named_model(model).path)] if is_known else ["--model", model]
    argv = [sys.executable, "-m", "bakeoff.reference_engine", "serve", *named]
    # The user's own options come last and win.
    argv += [*(["--port", str(port)] if port is not None else []), *engine_args]
    os.execv(sys.executable, argv)  # noqa: S606  (no shell: the server replaces this process and gets its signals)


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


COMMANDS = [Command("serve", serve, Title.LAB, 10)]
