"""The command ``bakeoff lab claims``, whose program is in a checkout only."""

import sys
from pathlib import Path
from typing import Annotated

import cyclopts

from bakeoff.harness.cli.command import Command

_CHECKOUT = Path(__file__).resolve().parents[3]


def claims(*arguments: Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)]) -> int:
    """Re-measure well-known claims about inference, in a checkout."""
    import importlib

    from bakeoff.harness.cli import make_app
    from bakeoff.harness.cli.guarded import guarded
    from bakeoff.harness.errors import HarnessError

    if not (_CHECKOUT / "benchmarks" / "claims").is_dir():
        raise HarnessError("claims are measured in a checkout of Bakeoff only; clone it, and run make install there")
    sys.path.append(str(_CHECKOUT))
    program = importlib.import_module("benchmarks.claims.interpreter.commands")
    return guarded(make_app(replacing=program.COMMANDS), ["lab", "claims", *arguments])


COMMANDS = [Command("lab claims", claims, has_help=False)]
