"""The command that measures the ceilings of this machine: machine."""

from typing import TYPE_CHECKING, Annotated

import cyclopts

from bakeoff.harness.cli.command import Command, command
from bakeoff.harness.cli.measured import destination
from bakeoff.harness.cli.options import DEFAULT_OUT, Json, Out
from bakeoff.harness.cli.output import print_line

if TYPE_CHECKING:
    from rich.console import Console

    from bakeoff.results.machine.ceilings import Ceilings


_SECONDS = cyclopts.Parameter(validator=cyclopts.validators.Number(gt=0))


def machine(*, seconds: Annotated[float, _SECONDS] = 0.5, out: Out = DEFAULT_OUT) -> "list[Ceilings]":
    """Measure this machine's memory bandwidth and matrix products, on the CPU and on each GPU.

    These are the ceilings of inference: a decode step reads all weights, a prompt multiplies by them. They are stored
    beside the runs: bakeoff profile says how near to them prefill and decode come. Needs torch. Run nothing else
    meanwhile.

    Examples
    --------
    bakeoff lab machine
    bakeoff lab machine --seconds 5
    bakeoff lab machine --json

    Parameters
    ----------
    seconds
        Duration of each measurement. A GPU at its power limit needs several seconds to slow down.
    out
        Folder of runs in which the ceilings are stored.
    """
    from bakeoff.engines.errors import NotInstalled
    from bakeoff.harness.host.environment import environment
    from bakeoff.installation import how_to_install
    from bakeoff.results.machine.ceilings import store_ceilings

    try:
        from bakeoff.harness.host.ceilings import measure_machine
    except ImportError as error:
        raise NotInstalled("bakeoff lab machine needs torch", how_to_install("engine")) from error
    measured = measure_machine(seconds)
    path = store_ceilings(destination(out)[0], environment(), measured)
    print_line(f"stored: {path}")
    return measured


def _show(measured: "list[Ceilings]", *, json: Json = False) -> None:
    """Print a table of the ceilings.

    Parameters
    ----------
    json
        Print the result as JSON on stdout.
    """
    from bakeoff.harness.cli.output import print_result

    print_result(measured, _print, json=json)


def _print(measured: "list[Ceilings]", console: "Console") -> None:
    from bakeoff.results.metric import Unit
    from bakeoff.results.show.table import text_table
    from bakeoff.results.show.terminal import print_table
    from bakeoff.results.text.format import ABSENT, plain, rate_text, value_text

    dtypes = list(dict.fromkeys(dtype for ceilings in measured for dtype in ceilings.flops_per_s))
    rows = (
        (
            ceilings.device,
            value_text(Unit.BYTES, ceilings.memory_bytes),
            *(rate_text(rate, "B/s") for rate in (ceilings.read_bytes_per_s, ceilings.copy_bytes_per_s)),
            *(
                ABSENT if (value := ceilings.flops_per_s.get(dtype)) is None else rate_text(value, "FLOP/s")
                for dtype in dtypes
            ),
        )
        for ceilings in measured
    )
    print_table(text_table("Ceilings", ("device", "memory", "read", "copy", *dtypes), rows), console)
    for ceilings in measured:
        console.print(plain(f"{ceilings.device}: {ceilings.name}"), style="dim", markup=False, highlight=False)


COMMANDS = [Command("lab machine", command(machine, _show))]
