"""Writes track events of Perfetto: slices, instants, flows and counters on named tracks.

Field numbers: https://github.com/google/perfetto/tree/main/protos/perfetto/trace (``trace_packet.proto``,
``track_event/track_event.proto``, ``track_event/track_descriptor.proto``). Times are in nanoseconds of one clock.
"""

import itertools
from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType

import msgspec

from bakeoff.results.trace import protobuf

_PACKET = 1  # of Trace
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 11, 60  # of TracePacket
_ANNOTATION, _TYPE, _TRACK, _NAME, _COUNTER_VALUE, _FLOW, _END_FLOW = 4, 9, 11, 23, 44, 47, 48  # of TrackEvent
_UUID, _TRACK_NAME, _PROCESS, _PARENT, _COUNTER = 1, 2, 3, 5, 8  # of TrackDescriptor
_PID, _PROCESS_NAME = 1, 6  # of ProcessDescriptor
_UNIT_NAME = 6  # of CounterDescriptor
_INT_VALUE, _STRING_VALUE, _ANNOTATION_NAME = 4, 6, 10  # of DebugAnnotation
_SEQUENCE = 1


class _Kind(IntEnum):
    """TrackEvent.Type; the order in which events of one instant are written follows from it, see :func:`_order`."""

    BEGIN = 1
    END = 2
    INSTANT = 3
    COUNTER = 4


class Track(msgspec.Struct, frozen=True):
    """A track of a trace."""

    uuid: int


class _Event(msgspec.Struct, frozen=True):
    t_ns: int
    rank: int
    number: int
    data: bytes


Arguments = Mapping[str, int | str]
"""Shown when a slice is selected."""
_NONE: Arguments = MappingProxyType({})


class Trace:
    """A trace under construction. Slices of one track must nest: the outer one is added before the inner ones."""

    def __init__(self) -> None:
        self._descriptors: list[bytes] = []
        self._events: list[_Event] = []
        self._uuids = itertools.count(1)

    def process(self, name: str) -> Track:
        """A group of tracks."""
        uuid = next(self._uuids)
        process = protobuf.number(_PID, uuid) + protobuf.text(_PROCESS_NAME, name)
        self._describe(uuid, protobuf.data(_PROCESS, process))
        return Track(uuid)

    def track(self, name: str, parent: Track) -> Track:
        """A track of slices and instants."""
        uuid = next(self._uuids)
        self._describe(uuid, protobuf.text(_TRACK_NAME, name) + protobuf.number(_PARENT, parent.uuid))
        return Track(uuid)

    def counter(self, name: str, unit: str, parent: Track, values: Iterable[tuple[int, float]]) -> None:
        """A track of numbers over time.

        Args:
            name: of the track.
            unit: of the values.
            parent: its group.
            values: pairs of time and value.
        """
        uuid = next(self._uuids)
        counter = protobuf.data(_COUNTER, protobuf.text(_UNIT_NAME, unit))
        self._describe(uuid, protobuf.text(_TRACK_NAME, name) + protobuf.number(_PARENT, parent.uuid) + counter)
        for t_ns, value in values:
            self._add(Track(uuid), t_ns, _Kind.COUNTER, protobuf.double(_COUNTER_VALUE, value))

    def slice(
        self, track: Track, name: str, start_ns: int, end_ns: int, arguments: Arguments = _NONE,
        *, flows: Iterable[int] = (),
    ) -> None:  # fmt: skip
        """A slice; nothing if it is empty.

        Args:
            track: its track.
            name: shown on it.
            start_ns: begin.
            end_ns: end.
            arguments: shown when it is selected.
            flows: ids of the flows that pass through it.
        """
        if end_ns <= start_ns:
            return
        flowing = b"".join(protobuf.fixed64(_FLOW, flow) for flow in flows)
        self._add(track, start_ns, _Kind.BEGIN, protobuf.text(_NAME, name) + _annotations(arguments) + flowing)
        self._add(track, end_ns, _Kind.END, b"")

    def instant(
        self, track: Track, name: str, t_ns: int, arguments: Arguments = _NONE, *, ends: Iterable[int] = ()
    ) -> None:
        """A mark, in which flows may end."""
        ended = b"".join(protobuf.fixed64(_END_FLOW, flow) for flow in ends)
        self._add(track, t_ns, _Kind.INSTANT, protobuf.text(_NAME, name) + _annotations(arguments) + ended)

    def encoded(self) -> bytes:
        """The whole trace."""
        ordered = sorted(self._events, key=lambda event: (event.t_ns, event.rank, event.number))
        return b"".join([*self._descriptors, *(event.data for event in ordered)])

    def _describe(self, uuid: int, fields: bytes) -> None:
        descriptor = protobuf.number(_UUID, uuid) + fields
        packet = protobuf.data(_TRACK_DESCRIPTOR, descriptor) + protobuf.number(_SEQUENCE_ID, _SEQUENCE)
        self._descriptors.append(protobuf.data(_PACKET, packet))

    def _add(self, track: Track, t_ns: int, kind: _Kind, fields: bytes) -> None:
        event = protobuf.number(_TYPE, kind) + protobuf.number(_TRACK, track.uuid) + fields
        packet = (
            protobuf.number(_TIMESTAMP, t_ns)
            + protobuf.data(_TRACK_EVENT, event)
            + protobuf.number(_SEQUENCE_ID, _SEQUENCE)
        )
        number = len(self._events)
        self._events.append(_Event(t_ns, *_order(kind, number), protobuf.data(_PACKET, packet)))


def _order(kind: _Kind, number: int) -> tuple[int, int]:
    """Rank among events of one instant: ends before begins, and of nested slices the inner end first."""
    return (0, -number) if kind is _Kind.END else (1, number)


def _annotations(arguments: Arguments) -> bytes:
    fields: list[bytes] = []
    for name, value in arguments.items():
        encoded = protobuf.text(_STRING_VALUE, value) if isinstance(value, str) else protobuf.number(_INT_VALUE, value)
        fields.append(protobuf.data(_ANNOTATION, protobuf.text(_ANNOTATION_NAME, name) + encoded))
    return b"".join(fields)
