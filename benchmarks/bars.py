"""The bars of a benchmark script: a table, then one JSON line, then exit status 0 if all bars hold, else 1."""

import argparse
import json
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

_HOLDS: dict[str, Callable[[Any, Any], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


def model_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``: the converted SmolLM2 checkpoint, by default the Makefile's."""
    default = os.environ.get("BAKEOFF_TEST_MODEL")
    parser.add_argument("--model", default=default, required=default is None, help="checkpoint folder (make model)")


class Bars:
    """Collects bars; :meth:`finish` prints them and exits."""

    def __init__(self) -> None:
        self._bars: dict[str, dict[str, Any]] = {}

    def add(self, name: str, value: float, relation: str, goal: float) -> None:
        """``add("ttft_p50_error_ms", 0.2, "<=", 1.0)``."""
        holds = bool(_HOLDS[relation](value, goal))
        self._bars[name] = {"value": round(float(value), 4), "goal": f"{relation} {goal:g}", "pass": holds}

    def finish(self) -> None:
        """Print table and JSON line, then exit: 0 if every bar holds, else 1."""
        width = max(map(len, self._bars))
        for name, bar in self._bars.items():
            print(f"{name:<{width}}  {bar['value']:>12}  goal {bar['goal']:<10} {'ok' if bar['pass'] else 'FAIL'}")
        print(json.dumps(self._bars))
        sys.exit(0 if all(bar["pass"] for bar in self._bars.values()) else 1)
