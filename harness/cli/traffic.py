"""Commands about traffic: list, show and sample workloads."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from harness.cli.options import EXIT_OK, Json, standard_output

if TYPE_CHECKING:
    from harness.portraits import Subject

workloads_app = cyclopts.App(name="workloads", help="List, show, sample and fit traffic.")

Options = Annotated[list[str] | None, cyclopts.Parameter(name="--option", negative="")]
Folder = Annotated[Path | None, cyclopts.Parameter(name="--tokenizer")]
_COUNT = cyclopts.Parameter(name=["--sessions", "-n"], validator=cyclopts.validators.Number(gte=1))


@workloads_app.command(name="list")
def list_workloads(*, json: Json = False) -> int:
    """List workloads and replayable trace formats.

    Parameters
    ----------
    json
        Print them as JSON on stdout.
    """
    from harness.cli.reading import print_json
    from harness.portraits.catalogue import catalogue, print_catalogue

    found = catalogue()
    if json:
        print_json(found)
    else:
        print_catalogue(found, standard_output())
    return EXIT_OK


@workloads_app.command
def show(
    name: str,
    *,
    option: Options = None,
    seed: int = 1,
    sessions: Annotated[int | None, _COUNT] = None,
    tokenizer: Folder = None,
    html: Path | None = None,
    json: Json = False,
) -> int:
    """Show a workload's arrivals, lengths, sessions and cacheable share.

    Nothing is sent, and where the workload allows it no prompt is written.

    Parameters
    ----------
    name
        A workload, or the path of a trace, of a preset's file or of written sessions.
    option
        key=value of the workload, as often as there are options; values as in TOML.
    seed
        Of the traffic.
    sessions
        How many to look at, at most; the default is 2000, and 20000 of a trace without words.
    tokenizer
        A model's folder, for workloads whose prompts must be written; the default is the model that was pulled.
    html
        Write the same as one offline page.
    json
        Print figures, bins, curve and anchors as JSON on stdout.
    """
    from harness.cli.reading import print_json
    from harness.portraits import as_data, print_portrait, write_page

    subject = _drawn(name, option or [], seed, sessions, tokenizer)
    if html is not None:
        write_page(subject, html)
    if json:
        print_json(as_data(subject))
    else:
        console = standard_output()
        print_portrait(subject, console)
        if html is not None:
            console.print(f"\npage: {html}", markup=False, highlight=False, soft_wrap=True)
    return EXIT_OK


@workloads_app.command
def sample(
    name: str,
    *,
    sessions: Annotated[int, _COUNT] = 100,
    option: Options = None,
    seed: int = 1,
    tokenizer: Folder = None,
    out: Path | None = None,
) -> int:
    """Write sessions of a workload as JSON lines, to be sent again as they are.

    Parameters
    ----------
    name
        A workload, or the path of a trace, of a preset's file or of written sessions.
    sessions
        How many, at most.
    option
        key=value of the workload, as often as there are options; values as in TOML.
    seed
        Of the traffic.
    tokenizer
        The model's folder; the default is the model that was pulled.
    out
        File for them, packed where it ends in .gz; the default is stdout.
    """
    from harness.portraits.choosing import chosen, tokenizer_at
    from harness.portraits.sampling import Sampled, print_lines, session_lines, write_lines
    from workloads import Seed

    wanted = chosen(name, option or [])
    written = Sampled()
    lines = session_lines(wanted.made, tokenizer_at(tokenizer)[0], Seed.of(str(seed)), sessions, written)
    if out is None:
        print_lines(lines, sys.stdout.buffer)
    else:
        write_lines(lines, out)
        sys.stdout.write(
            f"{out}: {written.sessions:,} sessions, {written.requests:,} requests, "
            f"{written.prompt_tokens:,} prompt tokens\n"
        )
    return EXIT_OK


def _drawn(name: str, given: list[str], seed: int, sessions: int | None, tokenizer: Path | None) -> "Subject":
    """Draw without a tokenizer where the workload can do so and none was given."""
    from harness.portraits.choosing import chosen, subject_of, tokenizer_at
    from workloads import NoTokenizer

    wanted = chosen(name, given)
    counter = None if tokenizer is None else tokenizer_at(tokenizer)
    try:
        return subject_of(wanted, seed, sessions, counter)
    except NoTokenizer:
        if counter is not None:
            raise
        return subject_of(wanted, seed, sessions, tokenizer_at(None))
