"""Keeps secrets out of the raw log."""

import itertools
from collections.abc import Sequence

import msgspec

from bakeoff.engines import Access
from bakeoff.harness.client.worker.sessions import Recorder
from bakeoff.results.records import StreamRecord


class _RedactingRecorder:
    """A recorder that masks whole credentials in responses: servers quote them in refusals.

    Everything else stays as it was received. Costs nothing on the timed path, since an exchange is recorded after its
    end.
    """

    def __init__(self, log: Recorder, secrets: Sequence[bytes]) -> None:
        self._log = log
        self._secrets = secrets

    def append(self, record: StreamRecord) -> None:
        """Take one record, and mask the secrets in it."""
        body = b"".join(record.reads)
        if any(secret in body for secret in self._secrets):
            record = msgspec.structs.replace(record, reads=self._masked(record.reads, body))
        if record.detail is not None:  # such as where a redirect points
            record = msgspec.structs.replace(record, detail=self._hidden(record.detail.encode()).decode())
        self._log.append(record)

    def flush(self) -> None:
        self._log.flush()

    def _masked(self, reads: Sequence[bytes], body: bytes) -> list[bytes]:
        """The reads with asterisks in place of secrets, including secrets that span two reads."""
        body = self._hidden(body)
        ends = list(itertools.accumulate(map(len, reads)))
        return [body[end - len(read) : end] for read, end in zip(reads, ends, strict=True)]

    def _hidden(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data


def redacting_recorder(log: Recorder, access: Access) -> Recorder:
    """A recorder that masks the secrets of ``access``; ``log`` itself if it has none."""
    secrets = access.secrets()
    return _RedactingRecorder(log, secrets) if secrets else log
