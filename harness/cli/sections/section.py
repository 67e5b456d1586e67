"""How a section of ``bakeoff report`` is declared."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Section(NamedTuple):
    """A section of ``bakeoff report``.

    Attributes:
        name: its word on the command line.
        print: prints it, given the runs, the options and whether as JSON.
        options: those that it takes.
        takes_several: whether it takes several runs.
    """

    name: str
    print: Callable[[Sequence[str], Mapping[str, Any], bool], None]
    options: Sequence[str] = ()
    takes_several: bool = False
