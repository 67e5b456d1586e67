"""Runs that older versions wrote (golden/README.md) give the figures that their files hold."""

import statistics
from pathlib import Path

import pytest

import results
from results.records import Outcome, RunStatus
from results.store import RunFolder, TrialFolder

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = {
    # Seconds from the planned start to the first token and to the last, as worked out from requests.jsonl; repeat 1.
    1: (
        [0.250398824, 0.250430252, 0.250486617, 0.250499742, 0.250568911],
        [0.400423335, 0.400427022, 0.400430098, 0.400478521, 0.400558027],
    ),
    2: (
        [0.251138012, 0.251177506, 0.251630005, 0.251641532, 0.252242612],
        [0.400492424, 0.400648308, 0.400701364, 0.400935771, 0.403050356],
    ),
}
WINDOW_S = {1: 2.002600682, 2: 2.023432098}
"""From the first request's plan to the end of the last one."""


def trials(schema: int) -> list[TrialFolder]:
    return RunFolder.open(GOLDEN / f"schema-{schema}").trials()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_figures_are_those_of_the_files(schema: int) -> None:
    run = results.load(GOLDEN / f"schema-{schema}")
    assert (run.manifest.schema_version, run.status) == (schema, RunStatus.COMPLETE)
    assert [(trial.record.verdict, len(trial.requests)) for trial in run.finished] == [("VALID", 6)] * 2
    values = {name: value.value for name, value in run.finished[0].metrics.items()}
    ttfts_s, e2es_s = SCHEMAS[schema]
    assert values["ttft_p50_s"] == pytest.approx(statistics.median(ttfts_s), abs=1e-12)
    assert values["e2e_p50_s"] == pytest.approx(statistics.median(e2es_s), abs=1e-12)
    paces_s = [(e2e_s - ttft_s) / 3 for ttft_s, e2e_s in zip(ttfts_s, e2es_s, strict=True)]
    assert values["tpot_p50_s"] == pytest.approx(statistics.median(paces_s), rel=0.005)
    assert values["output_tokens_per_s"] == pytest.approx(20 / WINDOW_S[schema], rel=1e-9)
    assert values["failures"] == 0
    (cell,) = run.cells
    assert (cell.engine, cell.load, cell.valid, cell.planned) == ("reference", "c=1", 2, 2)
    assert cell.intervals["ttft_p50_s"].n == 2


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_raw_log_and_telemetry_are_read(schema: int) -> None:
    for trial in trials(schema):
        streams = {stream.index: stream for stream in trial.read_streams()}
        assert [log.torn_bytes for log in trial.stream_logs()] == [0]
        requests = trial.read_requests()
        assert sorted(streams) == [request.index for request in requests] == list(range(6))
        for request in requests:
            stream = streams[request.index]
            assert (stream.planned_ns, stream.sent_ns, stream.end) == (request.planned_ns, request.sent_ns, "complete")
            assert stream.read_ns[0] == request.chunk_ns[0]
            assert b"".join(stream.reads).count(b'"text":" a"') == 4
            assert b"".join(stream.reads).endswith(b"data: [DONE]\n\n")
            assert (request.outcome, request.chunk_tokens, request.text) == (Outcome.OK, [1] * 4, " a" * 4)
        assert {record.source for record in trial.read_telemetry().records} >= {"host", "client"}


def test_a_torn_log_of_schema_1_loses_its_last_line(tmp_path: Path) -> None:
    whole = (GOLDEN / "schema-1" / "trials" / "r1-reference-1" / "streams.jsonl").read_bytes()
    (tmp_path / "streams.jsonl").write_bytes(whole[:-100])
    (log,) = TrialFolder(tmp_path).stream_logs()
    assert [stream.index for stream in log] == list(range(5))
    assert log.torn_bytes == len(whole[:-1].rpartition(b"\n")[2]) - 99


def test_any_byte_of_a_schema_1_read_comes_back(tmp_path: Path) -> None:
    """JSON holds no bytes: schema 1 wrote each as the character of that number."""
    text = "".join(f"\\u{byte:04x}" for byte in range(256))
    (tmp_path / "streams.jsonl").write_text(
        '{"index":3,"phase":"measured","session":"s","turn":0,"planned_ns":1,"ended_ns":2,"end":"reset",'
        f'"read_ns":[5],"reads":["{text}"],"detail":"why"}}\n',
        encoding="ascii",
    )
    (stream,) = TrialFolder(tmp_path).read_streams()
    assert (stream.index, stream.end, stream.read_ns, stream.detail) == (3, "reset", [5], "why")
    assert stream.reads == [bytes(range(256))]
