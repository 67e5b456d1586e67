"""The command line: each command is a thin wrapper around a public Python call with the same parameter names.

``--help`` imports this whole package, so commands import heavy modules inside their functions.
"""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import cyclopts

from bakeoff.declared import declared
from bakeoff.harness.cli import commands
from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import exit_codes


def make_app(replacing: Iterable[Command] = ()) -> cyclopts.App:
    """The application with all its commands.

    Args:
        replacing: a group and its commands, in place of the command of the group's name.
    """
    app = cyclopts.App(
        name="bakeoff",
        help="Benchmark LLM inference servers with realistic traffic and honest error bars.",
        version=_version,
        version_flags=["--version"],
        group_commands=cyclopts.Group("Options of bakeoff", sort_key=len(Title)),
    )
    below = cyclopts.Group("Commands")
    for found in sorted(_with(replacing), key=Command.order):
        *above, name = found.name.split(" ")
        parent = app
        for word in above:
            parent = parent[word]
        options: dict[str, Any] = {
            "name": name,
            "group": found.title and found.title.panel,
            "sort_key": found.place,
            **found.flags,
        }
        if found.call is None:
            parent.command(cyclopts.App(help=found.help, group_commands=below, **options))
        else:
            parent.command(found.call, **options)
    app.register_install_completion_command(help="Let the shell complete bakeoff's commands and options.")
    for name, command in commands_of(app):
        codes = "; ".join(f"{code} {words}" for code, words in exit_codes(name).items())
        examples = "  \n".join(["Examples:", *(f"`{line}`" for line in examples_of(command))])  # Markdown
        command.help_epilogue = f"{examples}\n\nExit codes: {codes}" if examples_of(command) else f"Exit codes: {codes}"
    return app


def all_commands() -> list[Command]:
    """The commands that the modules of :mod:`bakeoff.harness.cli.commands` declare."""
    modules = declared(commands.__name__, commands.__path__, "COMMANDS")
    return [command for module in modules for command in module.COMMANDS]


def _with(replacing: Iterable[Command]) -> list[Command]:
    new = list(replacing)
    return [command for command in all_commands() if command.name not in {each.name for each in new}] + new


def commands_of(app: cyclopts.App, prefix: str = "") -> Iterator[tuple[str, cyclopts.App]]:
    """Commands below this one with their whole names, such as ``lab machine``; groups without their own."""
    for name in (name for name in app if not name.startswith("-")):
        below = app[name]
        if below.default_command is None:
            yield from commands_of(below, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", below


def examples_of(command: cyclopts.App) -> list[str]:
    """The command lines below *Examples* in the docstring of a command; none of one that hands over to a program."""
    documented = inspect.getdoc(command.default_command) or ""
    _, _, below = documented.partition("Examples\n--------\n")
    return below.partition("\n\n")[0].splitlines()


def _version() -> str:
    from bakeoff.harness.host.environment import git_commit
    from bakeoff.harness.version import version
    from bakeoff.results.schema import SCHEMA_VERSION

    commit = git_commit()
    return f"{version()} (schema {SCHEMA_VERSION} of runs{f', commit {commit}' if commit else ''})"
