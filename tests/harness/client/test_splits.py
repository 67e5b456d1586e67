"""Recorded streams, cut anywhere by the network, decode alike: HTTP chunks and reads are cut independently."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import Dialect, OpenAiDialect, ReferenceDialect, TransformersDialect
from bakeoff.results.records import Outcome
from tests.harness.cutting import HEAD, chunked, decoded, received

RECORDINGS = Path(__file__).parents[1] / "recordings"
STREAMS: dict[str, Dialect] = {
    "reference_chat": ReferenceDialect(),
    "reference_completions": ReferenceDialect(),
    "transformers_chat": TransformersDialect(),
    "handmade": OpenAiDialect(),
}
HANDMADE = "".join(
    f": beat\r\ndata: {payload}\r\n\r\n"
    for payload in (
        '{"choices":[{"index":0,"delta":{"role":"assistant"}}]}',
        '{"choices":[{"index":0,"delta":{"content":" Zürich"}}]}',
        '{"choices":[{"index":0,"delta":{"content":" 東京 🚆"}}]}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":{"completion_tokens":2}}',
        "[DONE]",
    )
).encode()


def body_of(name: str) -> bytes:
    return HANDMADE if name == "handmade" else (RECORDINGS / f"{name}.sse").read_bytes()


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_cuts_change_nothing(name: str, data: st.DataObject):
    body, dialect = body_of(name), STREAMS[name]
    whole = decoded(received(HEAD + chunked(body, []), []), dialect)
    wire = HEAD + chunked(body, data.draw(st.lists(st.integers(0, len(body)), max_size=40)))
    pieces = data.draw(st.lists(st.integers(0, len(wire)), max_size=200))
    assert decoded(received(wire, pieces), dialect) == whole
    assert whole.outcome is Outcome.OK


@pytest.mark.parametrize("name", STREAMS)
def test_single_bytes_change_nothing(name: str):
    body, dialect = body_of(name), STREAMS[name]
    whole = decoded(received(HEAD + chunked(body, []), []), dialect)
    wire = HEAD + chunked(body, range(0, len(body), 3))
    assert decoded(received(wire, range(len(wire))), dialect) == whole


def test_the_recordings_hold_what_they_should():
    texts = {name: decoded(received(HEAD + chunked(body_of(name), []), []), STREAMS[name]) for name in STREAMS}
    assert texts["reference_completions"].chunk_tokens == [1] * 24
    assert texts["transformers_chat"].text.startswith("Zürich, a city")
    assert texts["transformers_chat"].output_tokens == 19
    assert texts["handmade"].text == " Zürich 東京 🚆"
