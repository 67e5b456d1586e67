"""Results of claims, appended to one JSON file for each claim."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from bakeoff.results.errors import UNDECODABLE
from bakeoff.results.files.atomic import write_atomic
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.verdict import CaseResult, Verdict


class Record(msgspec.Struct, frozen=True):
    """One test of a claim.

    Attributes:
        claim: name.
        fingerprint: of claim, experiments, machine and missing things; with an equal one the test need not be repeated.
        machine: in words.
        tested_utc: ISO 8601.
        verdict: of all cases.
        cases: their results.
        complete: whether every case that can run here has a result.
        digest: of the claim and its experiments at that time.
    """

    claim: str
    fingerprint: str
    machine: str
    tested_utc: str
    verdict: Verdict
    cases: list[CaseResult]
    complete: bool = True
    digest: str = ""


def read_records(folder: Path, claim: str) -> list[Record]:
    """Records of a claim, oldest first.

    Raises:
        BadClaim: the file is damaged.
    """
    path = folder / f"{claim}.json"
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Record])
    except (OSError, *UNDECODABLE) as error:
        raise BadClaim(f"{path} cannot be read ({error}); move it away to test the claim again") from error


def append_record(folder: Path, record: Record) -> None:
    """Add a record to its claim's file.

    Raises:
        NotWritable: the folder is read-only or full.
    """
    records = [*read_records(folder, record.claim), record]
    folder.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(records), indent=1)
    write_atomic(folder / f"{record.claim}.json", encoded + b"\n")


def latest(records: list[Record]) -> Mapping[str, Record]:
    """The newest record of each machine."""
    return {record.machine: record for record in records}
