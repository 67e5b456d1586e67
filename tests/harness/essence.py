"""The fields of a load's records that must not depend on which process sent it."""

from collections.abc import Sequence
from typing import Any

from bakeoff.harness.client import LoadResult
from bakeoff.results.records import StreamRecord


def essence(result: LoadResult, records: Sequence[StreamRecord], *, is_open: bool) -> list[tuple[Any, ...]]:
    """All fields but the times, in the order of ``records``; of an open loop also the planned offset of first turns."""
    return [
        (
            record.index, record.phase, record.session, record.turn, record.end, record.status,
            record.requested_input_tokens, record.requested_output_tokens, b"".join(record.reads),
            record.planned_ns - result.issue.start_ns if is_open and record.turn == 0 else None,
        )
        for record in records
    ]  # fmt: skip
