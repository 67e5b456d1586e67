"""Reads a Dockerfile into its stages: enough to check it, and to run its steps where there is no Docker."""

import re
import shlex

import msgspec

_CONTINUED = re.compile(r"\\\n\s*")


class Step(msgspec.Struct, frozen=True):
    """One instruction.

    Attributes:
        keyword: in capitals, such as RUN.
        text: its arguments, without line breaks.
    """

    keyword: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments without options such as ``--from=wheel``."""
        return [word for word in shlex.split(self.text) if not word.startswith("--")]

    def option(self, name: str) -> str | None:
        """The value of ``--name=value``."""
        found = re.search(rf"(?:^|\s)--{name}=(\S+)", self.text)
        return found[1] if found else None


class Stage(msgspec.Struct, frozen=True):
    """What follows a FROM.

    Attributes:
        base: image or earlier stage, with the defaults of the arguments that stand before the first FROM.
        name: after AS; empty without.
        steps: the instructions after FROM.
    """

    base: str
    name: str
    steps: list[Step]


def read_stages(text: str) -> list[Stage]:
    """The stages in their order; the last is what ``docker build`` makes by default."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in _CONTINUED.sub("", "\n".join(lines)).splitlines():
        keyword, _, rest = line.partition(" ")
        step = Step(keyword.upper(), rest.strip())
        if step.keyword == "FROM":
            base, _, name = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], step.text).partition(" AS ")
            stages.append(Stage(base, name, []))
        elif stages:
            stages[-1].steps.append(step)
        else:
            name, _, default = step.text.partition("=")
            arguments[name] = default
    return stages
