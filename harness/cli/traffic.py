"""Commands about workloads: list, show and sample."""

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import cyclopts

from bakeoff.harness.cli.options import EXIT_OK, Json, standard_output

if TYPE_CHECKING:
    from bakeoff.harness.traffic.profile import ShownProfile

workloads_app = cyclopts.App(name="workloads", help="List, profile, sample and fit workloads.")

Options = Annotated[list[str] | None, cyclopts.Parameter(name="--option", negative="")]
Folder = Annotated[Path | None, cyclopts.Parameter(name="--tokenizer")]
_COUNT = cyclopts.Parameter(name=["--sessions", "-n"], validator=cyclopts.validators.Number(gte=1))


@workloads_app.command(name="list")
def list_workloads(*, json: Json = False) -> int:
    """List workloads and replayable trace formats.

    Parameters
    ----------
    json
        Print the list as JSON on stdout.
    """
    from bakeoff.harness.cli.reading import print_json
    from bakeoff.harness.traffic.profile.catalogue import catalogue, print_catalogue

    listing = catalogue()
    if json:
        print_json(listing)
    else:
        print_catalogue(listing, standard_output())
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
    """Profile a workload: arrivals, lengths, sessions and cacheable share.

    Nothing is sent to an engine. Prompts are written only if the workload cannot tell their lengths without.

    Parameters
    ----------
    name
        A workload, or the path of a trace, of a preset's file or of recorded sessions.
    option
        Workload option as key=value, with values as in TOML. May be given several times.
    seed
        Seed of the sample.
    sessions
        Maximum number of sessions in the sample. The default is 2000, or 20000 for a trace that holds lengths only.
    tokenizer
        Folder of a model whose tokenizer counts the prompts that must be written. The default is the pulled model.
    html
        Also write the profile, with charts, as one offline page.
    json
        Print the profile as JSON on stdout.
    """
    import msgspec

    from bakeoff.harness.cli.reading import print_json
    from bakeoff.harness.traffic.profile import print_profile, write_page

    profile = _profile(name, option or [], seed, sessions, tokenizer)
    if html is not None:
        write_page(profile, html)
    if json:
        print_json(msgspec.to_builtins(profile))
    else:
        console = standard_output()
        print_profile(profile, console)
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
    """Write a workload's sessions as JSON lines, to be sent unchanged later.

    Parameters
    ----------
    name
        A workload, or the path of a trace, of a preset's file or of recorded sessions.
    sessions
        Maximum number of sessions.
    option
        Workload option as key=value, with values as in TOML. May be given several times.
    seed
        Seed of the traffic.
    tokenizer
        Folder of the model whose tokenizer counts the prompts. The default is the pulled model.
    out
        File to write, compressed if it ends in .gz. The default is stdout.
    """
    from bakeoff.harness.traffic.profile.selection import select, tokenizer_at
    from bakeoff.results.files.atomic import write_atomic
    from bakeoff.workloads import Seed
    from bakeoff.workloads.sample import SampleCount, gzipped, session_lines

    selection, count = select(name, option or []), SampleCount()
    lines = session_lines(selection.workload, tokenizer_at(tokenizer)[0], Seed.of(str(seed)), sessions, count)
    if out is None:
        _print_lines(lines, sys.stdout.buffer)
    else:
        write_atomic(out, gzipped(lines) if out.suffix == ".gz" else lines)
        sys.stdout.write(
            f"{out}: {count.sessions:,} sessions, {count.requests:,} requests, {count.prompt_tokens:,} prompt tokens\n"
        )
    return EXIT_OK


def _profile(name: str, options: list[str], seed: int, sessions: int | None, folder: Path | None) -> "ShownProfile":
    """Profile without a tokenizer if none was given and the workload does not need one."""
    from bakeoff.harness.traffic.profile.selection import profile_selection, select, tokenizer_at
    from bakeoff.workloads import NoTokenizer

    selection = select(name, options)
    if folder is not None:
        return profile_selection(selection, seed, sessions, tokenizer_at(folder))
    try:
        return profile_selection(selection, seed, sessions)
    except NoTokenizer:
        return profile_selection(selection, seed, sessions, tokenizer_at(None))


def _print_lines(lines: Iterable[bytes], out: BinaryIO) -> None:
    """Print lines until the reader closes its end, as ``head`` does."""
    try:
        out.writelines(lines)
        out.flush()
    except BrokenPipeError:
        # At its exit Python flushes stdout once more, which must not fail again.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
