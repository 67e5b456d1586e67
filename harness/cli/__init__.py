"""The command line: each command is a thin function over a public Python call with the same names.

Importing this package costs what ``--help`` costs, so the commands import everything heavy inside themselves.
"""

import sys

import cyclopts

from harness.cli import (
    calibrating,
    doctor,
    exchanging,
    fitting,
    gating,
    listing,
    measuring,
    reading,
    searching,
    showing,
    starting,
    truth,
)
from harness.cli.guarded import complain_of_bug, guarded


def make_app() -> cyclopts.App:
    """The application with all its commands."""
    app = cyclopts.App(
        name="bakeoff",
        help="Benchmark LLM inference servers with realistic traffic and honest error bars.",
        version=_version,
        version_flags=["--version"],
    )
    measured = (
        measuring.demo,
        measuring.run,
        measuring.bench,
        searching.search,
        reading.report,
        reading.compare,
        gating.gate,
        gating.floor,
        reading.history,
        showing.dashboard,
        reading.frontier,
    )
    for command in (*measured, exchanging.views, exchanging.export, calibrating.calibrate, doctor.doctor):
        app.command(command)
    app.command(measuring.serve, help_flags=(), version_flags=())  # all options are the engine's
    app.command(truth.serve_truth, name="truth")
    # fitting.workloads_app is traffic's group, to which fitting has added its command; so has starting to engines'
    for group in (exchanging.import_app, starting.engines_app, listing.models_app, fitting.workloads_app):
        app.command(group)
    return app


def _version() -> str:
    from harness.version import version

    return version()


def main() -> None:
    """Entry point of ``bakeoff``."""
    sys.excepthook = complain_of_bug
    sys.exit(guarded(make_app(), sys.argv[1:]))
