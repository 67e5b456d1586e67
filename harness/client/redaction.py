"""Secrets stay out of the raw log."""

import itertools
from collections.abc import Sequence

import msgspec

from engines import Access
from harness.client.sessions import Recorder
from results.records import StreamRecord


class _Masking:
    """A recorder that takes out of answers what requests carried to be let in: servers quote it when they refuse.

    Costs nothing on the timed path: an exchange is recorded when it has ended.
    """

    def __init__(self, log: Recorder, secrets: Sequence[bytes]) -> None:
        self._log = log
        self._secrets = secrets

    def append(self, record: StreamRecord) -> None:
        """Take one record, masked where it must be."""
        body = b"".join(record.reads)
        if any(secret in body for secret in self._secrets):
            record = msgspec.structs.replace(record, reads=self._masked(record.reads, body))
        self._log.append(record)

    def flush(self) -> None:
        """See :class:`~harness.client.sessions.Recorder`."""
        self._log.flush()

    def _masked(self, reads: Sequence[bytes], body: bytes) -> list[bytes]:
        """The same reads with asterisks in place of secrets, also of those that lie across two of them."""
        for secret in self._secrets:
            body = body.replace(secret, b"*" * len(secret))
        ends = list(itertools.accumulate(map(len, reads)))
        return [body[end - len(read) : end] for read, end in zip(reads, ends, strict=True)]


def redacting_recorder(log: Recorder, access: Access) -> Recorder:
    """A recorder for answers to requests that carry ``access``."""
    secrets = access.secrets()
    return _Masking(log, secrets) if secrets else log
