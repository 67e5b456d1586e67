"""Commands made from functions of the Python API, so that a command and its function have the same parameters."""

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeVar

import cyclopts

from bakeoff.harness.cli.exits import EXIT_INTERRUPTED, EXIT_OK
from bakeoff.harness.cli.output import print_line, print_notice
from bakeoff.harness.errors import RunInterrupted


class Title(Enum):
    """Titles of ``bakeoff --help``, in their order."""

    MEASURE = "Measure"
    LOOK = "Look"
    PREPARE = "Prepare"
    LAB = "Lab"

    @cached_property
    def panel(self) -> cyclopts.Group:
        """The panel of ``bakeoff --help`` below it."""
        return cyclopts.Group(self.value, sort_key=list(Title).index(self))


class Command(NamedTuple):
    """A command, or a group of them, as a module declares it.

    Attributes:
        name: its words after ``bakeoff``.
        call: the command; None for a group.
        title: below which ``bakeoff --help`` lists it; None inside a group.
        place: among the commands below one title.
        help: of a group; a command has its docstring.
        has_help: whether ``--help`` is the command's own, rather than that of a program to which it hands over.
    """

    name: str
    call: Callable[..., Any] | None
    title: Title | None = None
    place: int = 0
    help: str = ""
    has_help: bool = True

    def order(self) -> tuple[int, int, int]:
        """Sort key: groups before their commands, and the others as ``bakeoff --help`` lists them."""
        return self.name.count(" "), list(Title).index(self.title) if self.title else len(Title), self.place

    @property
    def flags(self) -> dict[str, Any]:
        """Where ``--help`` goes to another program, options of the application."""
        return {} if self.has_help else {"help_flags": (), "version_flags": ()}


def in_panels(call: Callable[..., int], panels: Mapping[str, str]) -> Callable[..., int]:
    """A command of many options, whose ``--help`` lists them below titles.

    Args:
        call: the command.
        panels: names of its parameters, by title.
    """
    groups = {
        name: cyclopts.Group(title, sort_key=place)
        for place, (title, names) in enumerate(panels.items())
        for name in names.split()
    }
    signature = inspect.signature(call)
    parameters = [
        each.replace(annotation=Annotated[each.annotation, cyclopts.Parameter(group=groups[each.name])])
        for each in signature.parameters.values()
    ]
    setattr(call, "__signature__", signature.replace(parameters=parameters))  # noqa: B010  (pyright)
    call.__annotations__ |= {each.name: each.annotation for each in parameters}
    return call


REHEARSING: ContextVar[bool] = ContextVar("REHEARSING", default=False)
"""Whether the command that runs was given ``--dry-run``."""


class Rehearsed(Exception):
    """A dry run has checked everything."""


_Result = TypeVar("_Result")
_PARAMETERS = "Parameters\n    ----------\n"


def command(
    function: Callable[..., _Result],
    show: Callable[..., None],
    exit_code: Callable[[_Result], int] = lambda _: EXIT_OK,
    *,
    no_evidence: int | None = None,
    closing: str | None = None,
) -> Callable[..., int]:
    """Make the command of a function: it calls the function, shows the result and returns an exit code.

    Args:
        function: gives the command its name, its help and its options.
        show: prints the result; its parameters after the result are options of the command only.
        exit_code: exit code of a result.
        closing: line for stderr after the result.
        no_evidence: exit code if the function raises ``NoEvidence``; None for that of every expected error.
    """
    signature = inspect.signature(function)
    of_function, of_show = signature.parameters, dict(list(inspect.signature(show).parameters.items())[1:])

    def call(*arguments: Any, **options: Any) -> int:  # noqa: ANN401  (those of the function)
        shown = {name: options.pop(name, parameter.default) for name, parameter in of_show.items()}
        rehearsing = REHEARSING.set(bool(shown.get("dry_run")))
        try:
            result = function(*arguments, **options)
        except Rehearsed:
            return _say_rehearsed(json=shown.get("json", False))
        except RunInterrupted as interrupted:
            from bakeoff.results.log.store import QUICK_BYTES

            run = interrupted.run
            if sum(run.folder.trial_of(record).stream_bytes for record in run.log.finished.values()) <= QUICK_BYTES:
                show(run, **shown)
            else:
                print_line(f"bakeoff report {run.path} shows the finished trials")
            print_line(f"interrupted: {interrupted}")
            return EXIT_INTERRUPTED
        except Exception as error:
            from bakeoff.results.errors import NoEvidence

            if no_evidence is None or not isinstance(error, NoEvidence):
                raise
            print_notice(str(error))
            return no_evidence
        finally:
            REHEARSING.reset(rehearsing)
        show(result, **shown)
        if closing is not None:
            print_line(closing)
        return exit_code(result)

    call.__name__ = call.__qualname__ = function.__name__
    call.__module__ = function.__module__
    call.__doc__ = _joined(function.__doc__ or "", show.__doc__ or "")
    parameters = [*of_function.values(), *of_show.values()]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": int}
    setattr(call, "__signature__", signature.replace(parameters=parameters, return_annotation=int))  # noqa: B010  (pyright)
    return call


def _say_rehearsed(*, json: bool) -> int:
    from bakeoff.harness.cli.output import print_json

    print_line("dry run: everything is in place")
    if json:
        print_json({"dry_run": True})
    return EXIT_OK


def _joined(of_function: str, of_show: str) -> str:
    """The function's docstring with the parameters of ``show``."""
    _, found, described = of_show.partition(_PARAMETERS)
    if not found:
        return of_function
    head = of_function.rstrip()
    return f"{head}\n{described}" if _PARAMETERS in head else f"{head}\n\n    {_PARAMETERS}{described}"
