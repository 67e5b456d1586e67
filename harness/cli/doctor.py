"""The command that checks the machine before a measurement: doctor."""

from typing import TYPE_CHECKING

from bakeoff.harness.cli.command import command
from bakeoff.harness.cli.exits import EXIT_DISTURBED, EXIT_OK
from bakeoff.harness.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from bakeoff.harness.host.doctor import Check


def doctor() -> "list[Check]":
    """Check what disturbs measurements on this machine, and how to fix it.

    Nothing is changed. To check whether engines can run here, use bakeoff engines doctor.
    """
    from bakeoff.harness.host.doctor import examine_machine

    return examine_machine()


def _show(checks: "list[Check]", *, json: Json = False) -> None:
    """Print one line per check.

    Parameters
    ----------
    json
        Print the result as JSON on stdout.
    """
    from bakeoff.harness.cli.output import print_result

    print_result(checks, _print, json=json)


def _print(checks: "list[Check]", console: "Console") -> None:
    from rich.text import Text

    from bakeoff.harness.host.doctor import State
    from bakeoff.results.text.format import plain

    styles = {State.FINE: "green", State.DISTURBS: "yellow", State.UNKNOWN: "dim"}
    for check in checks:
        description = "; ".join(part for part in (check.seen, check.effect) if part)
        remedy = f" → {check.remedy}" if check.remedy else ""
        line = Text.assemble(
            (f"{check.state.value:<9}", styles[check.state]), plain(f" {check.subject}: {description}{remedy}")
        )
        console.print(line, soft_wrap=True)


def _exit_code(checks: "list[Check]") -> int:
    """1 if something disturbs measurements, so that a job can stop before it measures."""
    from bakeoff.harness.host.doctor import State

    return EXIT_DISTURBED if any(check.state is State.DISTURBS for check in checks) else EXIT_OK


DOCTOR = command(doctor, _show, _exit_code)
