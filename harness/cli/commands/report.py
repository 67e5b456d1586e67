"""The command ``bakeoff report``: a run, or one of its sections."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from bakeoff.declared import declared
from bakeoff.harness.cli import sections
from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import Json, Metrics, Texts
from bakeoff.harness.cli.stored import read, show

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bakeoff.harness.cli.sections.section import Section
    from bakeoff.results import Run

Words = Annotated[str, cyclopts.Parameter(name="RUN")]
Tool = Annotated[
    Literal["vllm", "aiperf", "guidellm", "sglang", "genai-bench", "inference-perf", "mlperf"] | None,
    cyclopts.Parameter(name="--as"),
]


def report(
    *words: Words,
    price: Texts | None = None,
    api_price: Texts | None = None,
    metric: Metrics = None,
    as_: Tool = None,
    every: Annotated[bool, cyclopts.Parameter(name="--all")] = False,
    markdown: bool = False,
    svg: Path | None = None,
    json: Json = False,
) -> int:
    """Print a run's table and write its HTML page, or print one section.

    A section, as in bakeoff report RUN cost, is cost (what the traffic costs), frontier (the Pareto frontier of speed
    and throughput), grid (which settings are best) or views (what other clients would report for the same requests).

    Examples
    --------
    bakeoff report latest --markdown >> "$GITHUB_STEP_SUMMARY"
    bakeoff report runs/RUN cost --price gpu-hour=3.5
    bakeoff report runs/A runs/B frontier

    Parameters
    ----------
    words
        Run folder, its address in a store (s3://…), or latest: the newest in runs/; then the name of a section.
    price
        Of cost: what an engine costs: gpu-hour=3.5, machine-hour=0.4, gpus=2 where these are not known, or input=2.5,
        cached=0.25 and output=10 for a million tokens. Repeat the option for several, which are added up.
    api_price
        Of cost: what an API bills for the same tokens: input=2.5, cached=0.25, output=10; repeat for several.
    metric
        Of grid: metric to rank settings by and to show effects on; repeat for several. Default: goodput, else output.
    as_
        Of views: show every metric of one tool. Default: the main metrics of all tools side by side.
    every
        Print all warnings and declarations, not only the first three.
    markdown
        Print verdict and table in Markdown, for a pull request or a README.
    svg
        Also write the main picture, with the verdict above it, to this file.
    json
        Print the figures as JSON.
    """
    given = {"price": price, "api_price": api_price, "metric": metric, "as_": as_}
    options = {name: value for name, value in given.items() if value is not None}
    section, runs = _chosen(words, options, of_table=bool(every or markdown or svg))
    if section is not None:
        section.print(runs, options, json)
        return EXIT_OK
    run = read(runs[0])
    if svg is not None:
        _draw(run, svg)
    if markdown:
        _print_markdown(run, json=json)
    else:
        show(run, json=json, every=every)
    return EXIT_OK


def _chosen(
    words: "Sequence[str]", options: "Collection[str]", *, of_table: bool
) -> "tuple[Section | None, list[str]]":
    """The section that the words name, if they do, and the runs.

    Raises:
        BadExperiment: there is no run, or there are too many; or an option belongs to another section, or to none.
    """
    from bakeoff.harness.errors import BadExperiment

    modules = declared(sections.__name__, sections.__path__, "SECTION")
    known = {module.SECTION.name: module.SECTION for module in modules}
    section = known.get(words[-1]) if len(words) > 1 else None
    runs = list(words) if section is None else list(words[:-1])
    if foreign := [name for name in options if section is None or name not in section.options]:
        of = next(each.name for each in known.values() if foreign[0] in each.options)
        option = f"--{foreign[0].strip('_').replace('_', '-')}"
        run = shlex.quote(runs[0]) if runs else "RUN"
        raise BadExperiment(f"{option} belongs to a section; write bakeoff report {run} {of}")
    if section is not None and of_table:
        raise BadExperiment(f"--all, --markdown and --svg are of a run's table; leave out {section.name}")
    if not runs:
        raise BadExperiment("report takes a run folder, such as one under runs/")
    if len(runs) > 1 and not (section and section.takes_several):
        what = f"{section.name} takes one run" if section else f"'{runs[-1]}' is no section ({', '.join(known)})"
        raise BadExperiment(f"{what}; give each run a command of its own")
    return section, runs


def _draw(run: "Run", path: Path) -> None:
    from bakeoff.harness.errors import BadExperiment
    from bakeoff.results.files.atomic import write_atomic
    from bakeoff.results.report.picture import main_picture

    if path.suffix != ".svg":
        raise BadExperiment(f"--svg names the picture's file, which ends in .svg, not '{path}'")
    write_atomic(path, main_picture(run).encode())


def _print_markdown(run: "Run", *, json: bool) -> None:
    from bakeoff.harness.errors import BadExperiment
    from bakeoff.results.report.markdown import markdown_summary

    if json:
        raise BadExperiment("--markdown and --json are two forms of the same; give one of them")
    sys.stdout.write(markdown_summary(run))


COMMANDS = [Command("report", report, Title.LOOK, 10)]
