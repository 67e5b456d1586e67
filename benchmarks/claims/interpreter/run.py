"""Tests claims one after another, the shortest first, and stores their records."""

import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.host.environment import VERSION, environment, machine
from bakeoff.results.text.format import place_text
from benchmarks.claims.interpreter.catalogue import Entry, load_catalogue
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.lab import Lab, RealLab, result_of
from benchmarks.claims.interpreter.records import Record, append_record, latest, read_records
from benchmarks.claims.interpreter.verdict import verdict

Progress = Callable[[str], None]
FOLDER = Path("claims")


class Here(msgspec.Struct, frozen=True):
    """A machine.

    Attributes:
        text: name for people.
        facts: distinguish it from other machines.
    """

    text: str
    facts: dict[str, Any]


class ClaimsRun(msgspec.Struct, frozen=True):
    """Result of a call.

    Attributes:
        records: newest record of each claim that has one on this machine, by name.
        untested: claims for which no time was left.
    """

    records: list[Record]
    untested: list[str]


def claims(
    only: Sequence[str] = (),
    *,
    catalogue: str | Path | Sequence[str | Path] = (),
    out: str | Path = FOLDER,
    budget_min: float | None = None,
    progress: Progress = lambda _line: None,
) -> ClaimsRun:
    """Test claims on this machine, as ``bakeoff lab claims run`` does.

    Args:
        only: names of claims; empty for all.
        catalogue: folders of claim files besides the built-in ones.
        out: folder of records, runs and checkpoints.
        budget_min: minutes after which no claim is begun.
        progress: is called with one line for each claim.

    Raises:
        BadClaim: a claim file is malformed, or a name is unknown.
        KeyboardInterrupt: Ctrl-C; finished tests are kept.
    """
    folders = [catalogue] if isinstance(catalogue, str | Path) else catalogue
    if budget_min is not None and not budget_min > 0:
        raise BadClaim("--budget-min must be above 0")
    entries, folder = load_catalogue([Path(path) for path in folders], only), Path(out)
    return run_all(entries, RealLab(folder), folder, here(), budget_s=budget_min and budget_min * 60, progress=progress)


def here() -> Here:
    """This machine."""
    facts = environment()
    return Here(place_text(facts, "this machine"), machine(facts))


def run_all(
    entries: Sequence[Entry],
    lab: Lab,
    folder: Path,
    place: Here,
    *,
    budget_s: float | None = None,
    progress: Progress = lambda _line: None,
    clock: Callable[[], float] = time.monotonic,
) -> ClaimsRun:
    """Test the claims that have no record with the same fingerprint.

    The claim with the shortest remaining measurements is next, so those that share a finished run follow at once.

    Args:
        entries: the claims.
        lab: tests their cases.
        folder: of records.
        place: this machine.
        budget_s: seconds after which no claim is begun, nor one that by its estimate would end later.
        progress: is called with one line for each claim.
        clock: seconds.
    """
    end = None if budget_s is None else clock() + budget_s
    records: dict[str, Record] = {}
    waiting: dict[str, tuple[Entry, str]] = {}
    for entry in entries:
        mark = fingerprint(entry, lab, place)
        earlier = latest(read_records(folder, entry.name)).get(place.text)
        if earlier is not None and earlier.fingerprint == mark and earlier.complete:
            records[entry.name] = earlier
            progress(f"{entry.name}: {earlier.verdict.value} (tested {earlier.tested_utc})")
        else:
            waiting[entry.name] = entry, mark
    while waiting:
        costs = {name: _cost_s(entry, lab) for name, (entry, _) in waiting.items()}
        name = min(waiting, key=lambda candidate: (costs[candidate], candidate))
        if end is not None and clock() + costs[name] > end:
            break
        entry, mark = waiting.pop(name)
        record = records[name] = _tested(entry, mark, lab, place)
        append_record(folder, record)
        progress(f"{name}: {record.verdict.value}")
    return ClaimsRun([records[name] for name in sorted(records)], sorted(waiting))


def fingerprint(entry: Entry, lab: Lab, place: Here) -> str:
    """SHA-256 of everything that a claim's result depends on: claim, experiments, machine, and what it lacks."""
    facts = {
        "claim": entry.digest,
        "machine": place.facts,
        "missing": [lab.missing(entry, case) for case in entry.claim.cases],
        "bakeoff": VERSION,
    }
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def _tested(entry: Entry, mark: str, lab: Lab, place: Here) -> Record:
    results = [result_of(entry, case, lab) for case in entry.claim.cases]
    failed = any(result.retry or (result.procedure == "experiment" and result.why_absent) for result in results)
    return Record(
        claim=entry.name,
        fingerprint=mark,
        machine=place.text,
        tested_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict(results),
        cases=results,
        complete=not failed,
        digest=entry.digest,
    )


def _cost_s(entry: Entry, lab: Lab) -> float:
    """Approximate duration of the cases that can be tested here."""
    return lab.cost_s(entry, [case for case in entry.claim.cases if lab.missing(entry, case) is None])
