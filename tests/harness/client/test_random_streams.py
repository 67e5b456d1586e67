"""Random event streams decode to the records that an oracle states."""

from bakeoff.engines.dialects import OpenAiDialect
from bakeoff.harness.client.decode.exchange import decode_stream
from bakeoff.results.records import Outcome, Phase, RequestRecord, StreamEnd, StreamRecord
from tests.harness.client.random_streams import Stream, stream


def decoded(made: Stream) -> RequestRecord:
    record = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, ended_ns=10**9, end=StreamEnd.COMPLETE,
        status=200, requested_output_tokens=600, read_ns=[t_ns for t_ns, _ in made.reads],
        reads=[data for _, data in made.reads],
    )  # fmt: skip
    return decode_stream(record, OpenAiDialect(), None)


def test_each_decodes_as_the_oracle_says() -> None:
    ok = 0
    for seed in range(1000):
        made = stream(seed)
        record = decoded(made)
        kinds = record.chunk_kinds or "t" * len(record.chunk_ns)
        assert list(zip(record.chunk_ns, kinds, strict=True)) == made.chunks, seed
        assert record.text == made.text, seed
        assert (record.outcome is Outcome.OK) == made.is_ok, (seed, record.outcome, record.error)
        assert record.finish_reason == made.finish, seed
        assert (record.prompt_tokens, record.cached_tokens) == (made.prompt_tokens, made.cached_tokens), seed
        if made.output_tokens is not None and made.chunks:
            assert sum(record.chunk_tokens) == made.output_tokens, seed
        ok += made.is_ok
    assert 500 < ok < 1000
