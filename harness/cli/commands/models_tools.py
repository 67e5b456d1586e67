"""``bakeoff models prune``, ``distil``, ``trim``, ``eagle`` and ``quantize``: small models, and heads, from large ones.

Each replaces this process by one of the reference engine, which declares the options. Its standard input is the
built-in text, unless the command names another.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Annotated

import cyclopts

from bakeoff.harness.cli.command import Command

_PROMPTS = 2_000
_PROMPT_UNITS = 12
"""Units of the grammars per prompt: 20 to 60 words."""
_CODE_EVERY = 4
_TAKING_FILES = ("--out", "--text")
"""Options whose value may be called like a known model."""
Words = Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)]


def prune(*arguments: Words) -> None:
    """Remove the layers, neurons, heads and weights of a model that matter least on a text."""
    _become("prune", arguments)


def distil(*arguments: Words) -> None:
    """Distil a student from text that its teacher generates. Run the same command again to resume."""
    _become("distil", arguments)


def trim(*arguments: Words) -> None:
    """List the tokens that a draft model proposes: those that a text uses most, and all special ones."""
    _become("trim", arguments)


def eagle(*arguments: Words) -> None:
    """Train an EAGLE-3 draft head on text that its model writes. Run the same command again to resume."""
    _become("eagle", arguments)


def quantize(*arguments: Words) -> None:
    """Quantise the weights of a model, one layer at a time. Run the same command again to resume."""
    _become("quantize", arguments)


def _become(command: str, arguments: Sequence[str]) -> None:
    """Replace this process by a command of the reference engine.

    Args:
        command: name of the command of the engine.
        arguments: models, by name or as folders, and options.

    Raises:
        ReferenceMissing: its packages are not installed.
    """
    from bakeoff.engines.models import KNOWN_MODELS
    from bakeoff.harness.cli.known_models import named_model
    from bakeoff.harness.errors import ReferenceMissing
    from bakeoff.harness.quality.scorer import not_installed

    if why := not_installed():
        raise ReferenceMissing(why)
    leading = len(list(takewhile(lambda word: not word.startswith("-"), arguments)))
    models = {
        number
        for number, (before, word) in enumerate(pairwise(["", *arguments]))
        if number < leading or (word in KNOWN_MODELS and before not in _TAKING_FILES)
    }
    words = [str(named_model(word).path) if number in models else word for number, word in enumerate(arguments)]
    if not any(word == "--text" or word.startswith("--text=") for word in words):
        # The file has no name, so nothing is left of it when the process ends.
        with tempfile.TemporaryFile() as file:
            file.write(built_in_prompts().encode())
            file.seek(0)
            os.dup2(file.fileno(), 0)
    argv = [sys.executable, "-m", "bakeoff.reference_engine", command, *words]
    os.execv(sys.executable, argv)  # noqa: S606  (no shell: the new process gets this one's signals)


def built_in_prompts() -> str:
    """Generate prompts, one on each line: the same on every machine; every fourth is about code."""
    from itertools import islice

    from bakeoff.workloads.rng import Rng
    from bakeoff.workloads.text.code import code_units
    from bakeoff.workloads.text.prose import prose_units

    lines: list[str] = []
    for number in range(_PROMPTS):
        write = code_units if number % _CODE_EVERY == 0 else prose_units
        words = "".join(islice(write(Rng("1", "prompts", str(number))), _PROMPT_UNITS))
        lines.append(" ".join(words.split()))
    return "\n".join(lines) + "\n"


COMMANDS = tuple(
    Command(f"models {function.__name__}", function, has_help=False)
    for function in (prune, distil, trim, eagle, quantize)
)
