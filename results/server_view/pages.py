"""The metrics pages of an engine with several addresses: one by one, and as the page of the engine as a whole.

Each page has a telemetry source of its own: what its server does, a space, and the label of its address. The engine's
counters, gauges and histograms are the sums of its pages, and its shares their means. A router's page is left out: it
counts requests that replicas count too. Where prefill and decode are divided, each server sees only a part of a
request. Prompt tokens, prefix hits, queue and prefill are then those of the prefill servers; output tokens,
speculation, ITL and decode are those of the decode servers; nobody sees TTFT and E2E.
"""

from collections.abc import Sequence

import msgspec

from bakeoff.results.records import TelemetryRecord

SOURCE = "server"
"""Source of the only page of an engine; with a label behind it, that of a replica."""
_PREFILL, _DECODE, _ROUTER = "prefill", "decode", "router"
_OF_BOTH = ("running", "waiting", "kv_usage_share", "preemptions_total")
_OF_PREFILL = ("prompt_tokens_total", "prefix_", "queue_s", "prefill_s")
_OF_DECODE = ("output_tokens_total", "drafted_", "accepted_", "verifications_total", "itl_s", "decode_s")
_WHOLE = ("ttft_s", "e2e_s")
"""Beginnings of the names that count, by what a server does."""


class Page(msgspec.Struct, frozen=True):
    """A page in a trial's telemetry.

    Attributes:
        label: of its address; empty for the only page of an engine.
        kind: what its server does.
        records: of the page, by time, with the source :data:`SOURCE`.
    """

    label: str
    kind: str
    records: list[TelemetryRecord]


def pages(telemetry: Sequence[TelemetryRecord]) -> list[Page]:
    """The pages that were read, in the order of their first record."""
    by_source: dict[str, list[TelemetryRecord]] = {}
    for record in telemetry:
        if record.source.partition(" ")[0] in {SOURCE, _PREFILL, _DECODE, _ROUTER}:
            by_source.setdefault(record.source, []).append(record)
    found: list[Page] = []
    for source, records in by_source.items():
        kind, _, label = source.partition(" ")
        renamed = [msgspec.structs.replace(record, source=SOURCE) for record in records]
        found.append(Page(label, kind, sorted(renamed, key=lambda record: record.t_ns)))
    return found


def engine_page(telemetry: Sequence[TelemetryRecord]) -> list[TelemetryRecord]:
    """The records of the engine as a whole, by time: of its only page, or the sums of several.

    There is a sum each time that every page has been read again, and one for each mark that every page has.
    """
    parts = [page for page in pages(telemetry) if page.kind != _ROUTER]
    if not any(page.label for page in parts):
        return parts[0].records if parts else []
    by_time = sorted(
        ((number, record) for number, page in enumerate(parts) for record in page.records),
        key=lambda numbered: numbered[1].t_ns,
    )
    rounds: dict[object, dict[int, TelemetryRecord]] = {}
    whole: list[TelemetryRecord] = []
    for number, record in by_time:
        read = rounds.setdefault(record.values.get("mark"), {})
        read[number] = record
        if len(read) == len(parts):
            whole.append(_sum([(parts[each], read[each]) for each in sorted(read)], record.t_ns))
            read.clear()
    return whole


def _sum(read: Sequence[tuple[Page, TelemetryRecord]], t_ns: int) -> TelemetryRecord:
    failed = next(((page.label, why) for page, record in read if (why := record.reasons.get("scrape_s"))), None)
    mark = read[0][1].values.get("mark")
    values: dict[str, float | int | str | None] = {} if mark is None else {"mark": mark}
    if failed:
        return TelemetryRecord(t_ns, SOURCE, {"scrape_s": None, **values}, {"scrape_s": ": ".join(failed)})
    is_split = any(page.kind != SOURCE for page, _ in read)
    numbers: dict[str, list[float | int | str | None]] = {}
    for page, record in read:
        for name, value in record.values.items():
            if name != "mark" and _counts(page.kind, name, is_split=is_split):
                numbers.setdefault(name, []).append(value)
    reasons = {name: why for _, record in read for name, why in record.reasons.items() if name in numbers}
    return TelemetryRecord(t_ns, SOURCE, values | {name: _total(name, each) for name, each in numbers.items()}, reasons)


def _counts(kind: str, name: str, *, is_split: bool) -> bool:
    """Whether a page's value is part of the engine's."""
    if name == "scrape_s":
        return True
    if kind == SOURCE:
        return not (is_split and name.startswith(_WHOLE))
    return name.startswith((*_OF_BOTH, *(_OF_PREFILL if kind == _PREFILL else _OF_DECODE)))


def _total(name: str, values: Sequence[float | int | str | None]) -> float | int | None:
    """Sum over the pages that show it; the longest time to read one, and the mean of shares."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return None
    if name == "scrape_s":
        return max(numbers)
    return sum(numbers) / (len(numbers) if name.endswith("_share") else 1)
