"""The command line: each command is a thin wrapper around a public Python call with the same parameter names.

``--help`` imports this whole package, so commands import heavy modules inside their functions.
"""

from collections.abc import Iterator

import cyclopts

from bakeoff.harness.cli import (
    calibrating,
    claiming,
    doctor,
    exchanging,
    gating,
    machine,
    measuring,
    planning,
    reading,
    searching,
    showing,
    shrinking,
    starting,
    traffic,
    truth,
)
from bakeoff.harness.cli.exits import exit_codes


def make_app() -> cyclopts.App:
    """The application with all its commands."""
    app = cyclopts.App(
        name="bakeoff",
        help="Benchmark LLM inference servers with realistic traffic and honest error bars.",
        version=_version,
        version_flags=["--version"],
    )
    commands = (
        *measuring.COMMANDS,
        searching.SEARCH,
        reading.report,
        reading.COMPARE,
        gating.GATE,
        gating.FLOOR,
        reading.HISTORY,
        showing.dashboard,
        reading.FRONTIER,
        reading.GRID,
        reading.COST,
        exchanging.views,
        exchanging.EXPORT,
        calibrating.CALIBRATE,
        doctor.DOCTOR,
        machine.MACHINE,
        planning.PLAN,
    )
    for command in commands:
        app.command(command)
    app.command(measuring.serve, help_flags=(), version_flags=())  # --help and --version go to the reference engine
    app.command(truth.serve_truth, name="truth")
    app.register_install_completion_command(help="Let the shell complete bakeoff's commands and options.")
    # starting and shrinking re-export a group of another module after adding a command to it
    for group in (
        claiming.claims_app,
        exchanging.import_app,
        starting.engines_app,
        shrinking.models_app,
        traffic.workloads_app,
    ):
        app.command(group)
    for name, below in commands_of(app):
        below.help_epilogue = "Exit codes: " + "; ".join(f"{code} {words}" for code, words in exit_codes(name).items())
    return app


def commands_of(app: cyclopts.App, prefix: str = "") -> Iterator[tuple[str, cyclopts.App]]:
    """Commands below this one with their whole names, such as ``claims run``; groups without their own."""
    for name in (name for name in app if not name.startswith("-")):
        below = app[name]
        if below.default_command is None:
            yield from commands_of(below, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", below


def _version() -> str:
    from bakeoff.harness.version import version

    return version()
