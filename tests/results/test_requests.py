"""Requests in columns: the same records come out, and columns are those of the records."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.results import requests as requests_module
from bakeoff.results.columns import UNKNOWN
from bakeoff.results.records import Outcome, Phase, RequestRecord, StreamEnd, TokenSource, Window
from bakeoff.results.requests import Requests
from tests.results.handmade import request

NUMBERS = st.integers(-(2**40), 2**40)
CHUNKS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.sampled_from("trc")), max_size=6)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    chunks = sorted(draw(CHUNKS))
    has_kinds = draw(st.booleans())
    return RequestRecord(
        index=draw(NUMBERS), phase=draw(st.sampled_from(Phase)), session=draw(st.text(max_size=4)), turn=draw(NUMBERS),
        planned_ns=draw(NUMBERS), ended_ns=draw(NUMBERS), outcome=draw(st.sampled_from(Outcome)),
        parents=draw(st.none() | st.lists(NUMBERS, max_size=3).map(tuple)),
        sent_ns=draw(st.none() | NUMBERS), part=draw(st.floats(0, 1)), is_resent=draw(st.booleans()),
        end=draw(st.none() | st.sampled_from(StreamEnd)), token_source=draw(st.none() | st.sampled_from(TokenSource)),
        is_right=draw(st.none() | st.booleans()), error=draw(st.none() | st.text(max_size=9)),
        text=draw(st.text(max_size=9)), empty_chunk_ns=draw(st.lists(NUMBERS, max_size=2)),
        chunk_ns=[t_ns for t_ns, _, _ in chunks], chunk_tokens=[tokens for _, tokens, _ in chunks],
        chunk_kinds="".join(kind for _, _, kind in chunks) if has_kinds else "",
        textless_chunks=[i for i in range(len(chunks)) if i % 3 == 1],
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(records(), max_size=9), st.data())
def test_what_is_put_in_comes_out(made: list[RequestRecord], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as few:
        few.setattr(requests_module, "_SLICE", 4)  # so that columns appear after the first slice
        columns = Requests(made)
    assert columns == made
    assert columns[::-1] == made[::-1]
    assert [columns[i] for i in range(len(made))] == made
    flags = data.draw(st.lists(st.booleans(), min_size=len(made), max_size=len(made)))
    taken, kept = columns.take(np.array(flags, dtype=bool)), [r for r, flag in zip(made, flags, strict=True) if flag]
    assert taken == kept
    for name in RequestRecord.__struct_fields__:
        assert taken.values(name) == [getattr(record, name) for record in kept], name
    assert taken.ints("sent_ns").tolist() == [UNKNOWN if r.sent_ns is None else r.sent_ns for r in kept]
    assert taken.numbers("part").tolist() == [r.part for r in kept]
    assert taken.equal("token_source", None).tolist() == [r.token_source is None for r in kept]
    assert taken.is_present("parents").tolist() == [r.parents is not None for r in kept]


@settings(max_examples=40)
@given(st.lists(records(), max_size=6))
def test_chunks_are_those_of_the_records(made: list[RequestRecord]) -> None:
    columns = Requests(made)
    chunks = columns.chunks
    assert chunks.ns.tolist() == [t_ns for record in made for t_ns in record.chunk_ns]
    assert chunks.counts.tolist() == [len(record.chunk_ns) for record in made]
    assert chunks.total_tokens.tolist() == [record.total_chunk_tokens for record in made]
    assert chunks.first_ns.tolist() == [record.chunk_ns[0] if record.chunk_ns else UNKNOWN for record in made]
    assert chunks.last_ns.tolist() == [record.chunk_ns[-1] if record.chunk_ns else UNKNOWN for record in made]
    reads = [dict.fromkeys(record.chunk_ns, 0) for record in made]
    for own, record in zip(reads, made, strict=True):
        for t_ns, tokens in zip(record.chunk_ns, record.chunk_tokens, strict=True):
            own[t_ns] += tokens
    assert chunks.reads.counts.tolist() == [len(own) for own in reads]
    assert chunks.reads.tokens.tolist() == [tokens for own in reads for tokens in own.values()]
    kinds = [kind for record in made for kind in record.chunk_kinds or "t" * len(record.chunk_ns)]
    assert columns.is_reasoning.tolist() == [kind == "r" for kind in kinds]
    visible = [
        kind != "r" and i not in record.textless_chunks
        for record in made
        for i, kind in enumerate(record.chunk_kinds or "t" * len(record.chunk_ns))
    ]
    assert columns.is_visible.tolist() == visible


def test_requests_are_selected_by_outcome_phase_and_plan() -> None:
    made = [
        msgspec.structs.replace(request(planned, outcome=outcome, index=planned), phase=phase)
        for planned, outcome, phase in (
            (0, Outcome.OK, Phase.WARMUP), (1, Outcome.OK, Phase.RAMP), (2, Outcome.TIMEOUT, Phase.MEASURED),
            (3, Outcome.CANCELLED, Phase.TAIL),
        )
    ]  # fmt: skip
    columns = Requests(made)
    assert columns.under_load == made[1:]
    assert columns.ok == made[:2]
    assert columns.has_failed.tolist() == [False, False, True, False]
    assert columns.planned_inside(Window(made[1].planned_ns, made[3].planned_ns)) == made[1:3]
    assert Requests.joined([columns[:1], columns[3:]]) == [made[0], made[3]]
    assert Requests(columns) == columns


def test_a_number_that_no_column_can_hold_is_refused() -> None:
    with pytest.raises(OverflowError):
        Requests([request(0, index=1 << 70)])
