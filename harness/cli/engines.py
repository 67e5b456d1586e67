"""Commands about engines: list, doctor and install."""

import os
import sys
from typing import Annotated

import cyclopts

from harness.cli.options import EXIT_OK, Json, standard_output

engines_app = cyclopts.App(name="engines", help="List, check, install and start engines.")


@engines_app.command(name="list")
def list_engines(*names: str, json: Json = False) -> int:
    """List adapters with their options, and installable environments.

    Parameters
    ----------
    names
        Adapters; the default is all.
    json
        Print them as JSON on stdout.
    """
    from harness.cli.engine_tables import catalogue, print_catalogue
    from harness.cli.reading import print_json

    found = catalogue(names)
    if json:
        print_json(found)
    else:
        print_catalogue(found, standard_output())
    return EXIT_OK


@engines_app.command
def doctor(*names: str, json: Json = False) -> int:
    """Check which engines can run here, and how to fix those that cannot.

    Parameters
    ----------
    names
        Adapters; the default is all.
    json
        Print it as JSON on stdout.
    """
    from engines.doctor import examine
    from engines.machine import machine
    from harness.cli.engine_tables import diagnosis, print_diagnosis
    from harness.cli.reading import print_json

    here = machine()
    findings = examine(names, here)
    if json:
        print_json(diagnosis(findings, here))
    else:
        print_diagnosis(findings, here, standard_output())
    return EXIT_OK


@engines_app.command
def install(name: str, *, again: Annotated[bool, cyclopts.Parameter(negative="")] = False) -> int:
    """Install an engine into an environment of its own.

    Parameters
    ----------
    name
        As in bakeoff engines list.
    again
        Make it anew even when it is there.
    """
    from engines.environments import RECIPES
    from engines.environments import install as make
    from engines.machine import has_gpu

    made = make(name, _progress, again=again)
    if RECIPES[name].needs_gpu and not has_gpu():
        sys.stderr.write(f"{name} needs an NVIDIA GPU, and this machine has none\n")
    sys.stdout.write(f"{made.folder}\n")
    return EXIT_OK


def _progress(words: str, seconds: float) -> None:
    """Each step as a line; on a terminal the seconds count up behind it."""
    if not seconds:
        sys.stderr.write(f"{words}\n")
    elif sys.stderr.isatty() and len(line := f"{words}  {seconds:.0f} s") < os.get_terminal_size(2).columns:
        sys.stderr.write(f"\x1b[1A\x1b[K{line}\n")  # one line up, and over it
    sys.stderr.flush()
