"""Bar 5, second half: the same bytes cut anywhere decode to the same record. Run by ``make bench-client``.

Streams in the shape of each dialect, with CRLF, comments and characters of several bytes, cut at every offset, at
every pair of neighbouring offsets, and into single bytes.
"""

from benchmarks.bars import Bars
from engines.dialects import Dialect, OpenAiDialect, ReferenceDialect, TransformersDialect
from harness.client import decode_stream
from results.records import Outcome, Phase, RequestRecord, StreamRecord

_CHAT = '{{"choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}'
_IDS = '{{"choices":[{{"index":0,"text":"{}","token_ids":[{}]}}]}}'
_END = '{"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":3}}'
_WORDS = (" Zürich", " 東京", " 🚆")


def body(payloads: list[str], end: str) -> bytes:
    return "".join(f": beat{end}data: {payload}{end}{end}" for payload in payloads).encode()


STREAMS: dict[str, tuple[Dialect, bytes]] = {
    "openai, LF": (OpenAiDialect(), body([*map(_CHAT.format, _WORDS), _END, "[DONE]"], "\n")),
    "openai, CRLF": (OpenAiDialect(), body([*map(_CHAT.format, _WORDS), _END, "[DONE]"], "\r\n")),
    "reference": (ReferenceDialect(), body([*(_IDS.format(w, i) for i, w in enumerate(_WORDS)), _END, "[DONE]"], "\n")),
    "transformers": (TransformersDialect(), body([*map(_CHAT.format, _WORDS), _END], "\n")),
}


def decoded(dialect: Dialect, reads: list[bytes]) -> RequestRecord:
    """The whole record of reads that all arrived at once, so that only the cuts differ."""
    record = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, ended_ns=9, end="complete", sent_ns=1,
        status=200, read_ns=[5] * len(reads), reads=[read.decode("latin-1") for read in reads],
    )  # fmt: skip
    return decode_stream(record, dialect, None)


def cuts(data: bytes) -> list[list[bytes]]:
    """Every way that is tried."""
    ones = [[data[:i], data[i:]] for i in range(len(data) + 1)]
    twos = [[data[:i], data[i : i + 1], data[i + 1 :]] for i in range(len(data))]
    return [*ones, *twos, [data[i : i + 1] for i in range(len(data))]]


def main() -> None:
    different = tried = 0
    for name, (dialect, data) in STREAMS.items():
        whole = decoded(dialect, [data])
        assert whole.outcome is Outcome.OK, name
        assert whole.total_chunk_tokens == 3, name
        ways = cuts(data)
        tried += len(ways)
        different += sum(decoded(dialect, reads) != whole for reads in ways)
        print(f"{name}: {len(data)} bytes, {len(ways)} ways to cut")
    bars = Bars()
    bars.add("cuts_decoded_differently", different, "==", 0)
    bars.add("cuts_tried", tried, ">=", 1000)
    bars.finish()


if __name__ == "__main__":
    main()
