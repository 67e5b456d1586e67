"""Tokens of a finished trial, counted again from its raw log by the rules of this version.

A trial is stored with the counts of the version that measured it. Where :data:`~bakeoff.results.records.DECODER` has
changed since, the raw log is decoded again when the run is read, into files beside the stored ones, which stay as they
are: the log of the run is evidence, and what is derived from it may be derived again.
"""

import msgspec

from bakeoff.results.findings import Finding
from bakeoff.results.records import DECODER, StoredFile, TrialRecord, Verdict
from bakeoff.results.schema import SCHEMA_VERSION

REQUESTS = "requests.jsonl"
RECOUNTED = f"requests-{DECODER}.jsonl"
"""The requests of a trial that an earlier version stored, as this one counts them."""

DECODED_NOW = f"requests-schema-{SCHEMA_VERSION}.jsonl"
"""The requests of a trial that was cut off, of a run with an earlier schema, decoded by this version."""


class Recount(msgspec.Struct, frozen=True):
    """What a trial is by the rules of a later version."""

    decoder: int
    verdict: Verdict
    findings: list[Finding]
    file: StoredFile
    """The requests."""
    schema_version: int = SCHEMA_VERSION

    def applied(self, record: TrialRecord) -> TrialRecord:
        """The record of the trial by these rules; as it is if they are not those of this version."""
        if self.decoder != DECODER:
            return record
        return msgspec.structs.replace(
            record, decoder=DECODER, verdict=self.verdict, findings=self.findings,
            files={**record.files, RECOUNTED: self.file},
        )  # fmt: skip
