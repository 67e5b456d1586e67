"""The command ``bakeoff doctor``: checks the machine before a measurement, or its engines."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.exits import EXIT_DISTURBED, EXIT_OK
from bakeoff.harness.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bakeoff.engines.doctor import Finding
    from bakeoff.engines.machine import Machine
    from bakeoff.harness.host.doctor import Check


class Engines(NamedTuple):
    """Which engines can run on this machine."""

    engines: "Sequence[Finding]"
    machine: "Machine"


def doctor(
    *engines: str, environment: Annotated[bool, cyclopts.Parameter(negative="")] = False
) -> "list[Check] | Engines":
    """Check what disturbs measurements here, or which engines can run.

    Says how to mend each, and changes nothing.

    Examples
    --------
    bakeoff doctor
    bakeoff doctor --environment
    bakeoff doctor vllm sglang

    Parameters
    ----------
    engines
        Adapters to check instead of the machine.
    environment
        Check all adapters and their Python environments instead of the machine.
    """
    from bakeoff.engines.doctor import examine
    from bakeoff.engines.machine import machine
    from bakeoff.harness.host.doctor import examine_machine

    if not (engines or environment):
        return [*examine_machine(), *_of_installation()]
    here = machine()
    return Engines(examine(engines, here), here)


def _of_installation() -> "list[Check]":
    """Where Bakeoff keeps what it fetches and how to remove that, and the proxy that loads do not take."""
    import platformdirs

    from bakeoff.engines.environments.lookup import size_bytes
    from bakeoff.engines.proxies import ignored_proxy
    from bakeoff.harness.host.doctor import Check, State

    cache = platformdirs.user_cache_path("bakeoff")
    sizes = [(size_bytes(folder), folder.name) for folder in sorted(cache.glob("*")) if folder.is_dir()]
    parts = ", ".join(f"{name} {size / 1e9:.1f} GB" for size, name in sorted(sizes, reverse=True))
    remedy = "bakeoff engines remove NAME, or remove the folder: all of it can be fetched again" if parts else None
    kept = Check("cache", State.FINE, f"{cache}: {parts or 'empty'}", remedy=remedy)
    proxy = ignored_proxy("https://example.org") or ignored_proxy("http://example.org")
    seen = f"{proxy}; loads go to servers directly, since its delay would be measured" if proxy else "none is set"
    return [kept, Check("proxy", State.FINE, seen)]


def _show(checks: "list[Check] | Engines", *, json: Json = False) -> None:
    """Print one line per check, or a table of engines.

    Parameters
    ----------
    json
        Print the result as JSON on stdout.
    """
    from bakeoff.harness.cli.engine_tables import print_diagnosis
    from bakeoff.harness.cli.output import print_json, print_result, standard_output

    if isinstance(checks, list):
        print_result(checks, _print, json=json)
    elif json:
        print_json({"machine": checks.machine, "engines": checks.engines})
    else:
        print_diagnosis(checks.engines, checks.machine, standard_output())


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


def _exit_code(checks: "list[Check] | Engines") -> int:
    """1 if something disturbs measurements, so that a job can stop before it measures."""
    from bakeoff.harness.host.doctor import State

    if not isinstance(checks, list):
        return EXIT_OK
    return EXIT_DISTURBED if any(check.state is State.DISTURBS for check in checks) else EXIT_OK


COMMANDS = [Command("doctor", command(doctor, _show, _exit_code), Title.PREPARE, 10)]
