"""``bakeoff engines start``: one engine as a run would start it, until Ctrl-C."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from harness.cli.engines import engines_app
from harness.cli.options import EXIT_INTERRUPTED, EXIT_OK, Json

if TYPE_CHECKING:
    from engines import Engine, EngineSpec, Model
    from harness.conduct.engine_start import EngineUnderTest

__all__ = ["engines_app"]

Options = Annotated[list[str] | None, cyclopts.Parameter(name="--option", negative="")]
Settings = Annotated[list[str] | None, cyclopts.Parameter(name="--spec", negative="")]


@engines_app.command
def start(
    adapter: str,
    *words: str,
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
        Which engine: bakeoff engines list.
    words
        More of its command line, after --.
    model
        A known model, or the path of a checkpoint folder or a GGUF file.
    port
        Port of 127.0.0.1; the default is a free one.
    option
        key=value of the adapter's own options, several times; values as in TOML.
    spec
        key=value of the settings that all engines share, such as --spec max_num_seqs=8.
    environment
        Where its packages are: an installed environment, or the folder of a venv.
    log
        File to which its output is appended; the default is a new one.
    json
        Print where it is and what it is as one line of JSON on stdout.
    """
    import asyncio

    import uvloop

    from engines import Deployment, engine
    from harness.traffic.profile.selection import parse_options

    served = _model(model)
    deployment = Deployment(environment=environment, port=port, args=list(words))
    made = engine(adapter, served, parse_options(option or []), _spec(spec or []), deployment)
    place = log or _new_log(adapter)
    sys.stderr.write(f"starting {adapter}; its output: {place}\n")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_interrupted(made, served, port, place, json=json))


async def _until_interrupted(made: "Engine", model: "Model", port: int | None, log: Path, *, json: bool) -> int:
    """Keep it until Ctrl-C or SIGTERM, or until it dies, which is an error."""
    import asyncio
    import signal

    from engines import pick_port
    from harness.conduct.engine_start import started
    from harness.host.signals import stop_signals

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, *stop_signals()):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    status = EXIT_INTERRUPTED
    try:
        async with started(made, made.adapter, model, pick_port(port), log) as under_test:
            status = EXIT_OK
            _say(under_test, log, json=json)
            await under_test.server.ended.wait()
            death = under_test.server.died()
            assert death is not None
            raise death
    except asyncio.CancelledError:
        return status


def _say(under_test: "EngineUnderTest", log: Path, *, json: bool) -> None:
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


def _model(name_or_path: str) -> "Model":
    """A known name, unless something lies at that path."""
    from engines.models import resolve
    from harness.cli.listing import fetching

    is_path = "/" in name_or_path or Path(name_or_path).exists()
    return resolve(None, name_or_path, fetching) if is_path else resolve(name_or_path, None, fetching)


def _spec(pairs: list[str]) -> "EngineSpec":
    """Shared settings from key=value."""
    from engines import EngineSpec
    from engines.errors import BadOption
    from harness.traffic.profile.selection import parse_options
    from workloads.options import typed_options

    values: dict[str, Any] = parse_options(pairs)
    return typed_options(EngineSpec, values, "spec", BadOption)


def _new_log(adapter: str) -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix=f"bakeoff-{adapter}-"), "engine.log")
