"""The commands ``bakeoff lab claims list``, ``run`` and ``report``."""

import sys
from pathlib import Path
from typing import Annotated

import cyclopts

from bakeoff.harness.cli.command import Command
from bakeoff.harness.cli.exits import EXIT_CANNOT_TELL, EXIT_OK
from bakeoff.harness.cli.options import Json
from bakeoff.harness.cli.output import print_json, standard_output
from bakeoff.results.files.atomic import write_atomic
from benchmarks.claims.interpreter.catalogue import load_catalogue
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.lab import RealLab
from benchmarks.claims.interpreter.page import markdown, rows_of, write_page
from benchmarks.claims.interpreter.run import claims
from benchmarks.claims.interpreter.table import print_list, print_names, print_results

Catalogues = Annotated[list[Path] | None, cyclopts.Parameter(name="--catalogue", negative="")]
Only = Annotated[list[str] | None, cyclopts.Parameter(name="--only", negative="", consume_multiple=True)]
Out = Annotated[Path, cyclopts.Parameter(name="--out")]

_FOLDER = Path("claims")


def list_claims(*words: str, catalogue: Catalogues = None, out: Out = _FOLDER, json: Json = False) -> int:
    """List claims with their results, one on each line; with words, what those claims state and what they need.

    Examples:
    --------
    bakeoff lab claims list
    bakeoff lab claims list decode
    bakeoff lab claims list --json

    Parameters
    ----------
    words
        Parts of names: claims whose name contains one of them.
    out
        Folder of results.
    catalogue
        Folder with more claim files; repeat the option for several.
    json
        Print the claims as JSON.
    """
    entries = load_catalogue(catalogue or ())
    chosen = [entry for entry in entries if not words or any(word in entry.name for word in words)]
    if not chosen:
        raise BadClaim(f"no claim's name contains {' or '.join(words)}; bakeoff lab claims list prints all names")
    if json:
        print_json({entry.name: entry.claim for entry in chosen})
    elif words:
        print_list(chosen, RealLab(out), standard_output())
    else:
        print_names(rows_of(chosen, out), standard_output())
    return EXIT_OK


def run(
    *,
    here: Annotated[bool, cyclopts.Parameter(negative="")] = False,
    only: Only = None,
    catalogue: Catalogues = None,
    budget_min: float | None = None,
    out: Out = _FOLDER,
    json: Json = False,
) -> int:
    """Test claims on this machine; a claim that was tested under the same conditions is not tested again.

    Examples:
    --------
    bakeoff lab claims run --here
    bakeoff lab claims run --only prefix-caching-ttft
    bakeoff lab claims run --here --budget-min 60

    Parameters
    ----------
    here
        All claims, the shortest first; those that cannot be tested here get that verdict, with what is missing.
    only
        Names of claims; see bakeoff lab claims list.
    catalogue
        Folder with more claim files; repeat the option for several.
    budget_min
        Minutes after which no claim is begun.
    out
        Folder of results, runs and checkpoints.
    json
        Print the results as JSON.
    """
    if here == bool(only):
        raise BadClaim("give either --here for all claims, or --only with their names")
    tested = claims(only or (), catalogue=catalogue or (), out=out, budget_min=budget_min, progress=_say)
    if json:
        print_json(tested)
    else:
        print_results(rows_of(load_catalogue(catalogue or (), only or ()), out), standard_output())
    if tested.untested:
        _say(f"no time was left for {', '.join(tested.untested)}; the same command goes on")
    is_complete = not tested.untested and all(record.complete for record in tested.records)
    return EXIT_OK if is_complete else EXIT_CANNOT_TELL


def report(*, out: Out = _FOLDER, catalogue: Catalogues = None, page: Path | None = None, json: Json = False) -> int:
    """Write the page of all claims: claims.html, and claims.md beside it.

    Examples:
    --------
    bakeoff lab claims report
    bakeoff lab claims report --out claims
    bakeoff lab claims report --page page.html

    Parameters
    ----------
    out
        Folder of results.
    catalogue
        Folder with more claim files; repeat the option for several.
    page
        HTML page to write. Default: claims.html in --out.
    json
        Print the page's path, and the verdict of each claim, as JSON.
    """
    rows = rows_of(load_catalogue(catalogue or ()), out)
    target = page or out / "claims.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_page(rows, target)
    write_atomic(target.with_suffix(".md"), markdown(rows).encode())
    if json:
        verdicts = {row.entry.name: row.record and row.record.verdict for row in rows}
        print_json({"page": str(target), "verdicts": verdicts})
    else:
        sys.stdout.write(f"{target}\n")
    return EXIT_OK if all(row.record is not None for row in rows) else EXIT_CANNOT_TELL


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


COMMANDS = (
    Command("lab claims", None, help="Re-measure well-known claims about inference."),
    Command("lab claims list", list_claims),
    Command("lab claims run", run),
    Command("lab claims report", report),
)
