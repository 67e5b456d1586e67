"""The command ``bakeoff lab clock``."""

import time

from bakeoff.harness.cli.command import Command
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import Json


def clock(*, samples: int = 1000, quantile: float = 0.99, json: Json = False) -> int:
    """Measure the resolution of this machine's clock.

    Examples
    --------
    bakeoff lab clock
    bakeoff lab clock --samples 100000 --quantile 0.5
    bakeoff lab clock --json

    Parameters
    ----------
    samples
        Readings of the clock.
    quantile
        Of the steps between two readings.
    json
        Print the step as JSON.
    """
    from bakeoff.harness.cli.output import print_json, print_line

    readings = [time.monotonic_ns() for _ in range(samples + 1)]
    step = sorted(after - before for before, after in zip(readings, readings[1:], strict=False))[int(quantile * samples)]
    print_json({"step_ns": step}) if json else print_line(f"{step} ns")
    return EXIT_OK


COMMANDS = [Command("lab clock", clock)]
