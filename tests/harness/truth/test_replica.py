"""Replicas: when the first token of a prompt is due, what the cache holds by then, and what a replica shows."""

import contextlib
import json
import socket
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bakeoff.engines.adapters.vllm import METRICS
from bakeoff.engines.metrics.readers import reader_of
from bakeoff.harness.errors import BadSchedule
from bakeoff.harness.truth import Answered, Ending, Fault, Schedule, TruthServer
from bakeoff.harness.truth.answered import ReplicaAnswered
from bakeoff.harness.truth.record import lateness_s
from bakeoff.harness.truth.requests import body_of, completion_request
from bakeoff.harness.truth.timetable import Answer, Change, Timetable
from tests.harness.truth_client import Reply, ask, connect, posted, serving

MS = 1_000_000
SCHEDULE = Schedule(0.01, 0.002, prompt_token_s=0.001, cache_tokens=64, cache_block_tokens=4)
QUICK = Schedule(0.002, 0.001, prompt_token_s=0.0001, cache_tokens=4000)


def asked(timetable: Timetable, ids: Sequence[int], now_ns: int, tokens: int = 4) -> Answer:
    body = body_of("/v1/completions", json.dumps({"prompt": ids, "max_tokens": tokens, "stream": True}).encode())
    assert timetable.cache is not None
    prompt = timetable.cache.prompt("/v1/completions", body)
    request = completion_request("/v1/completions", body, "m", prompt.tokens)
    return timetable.add_request(5, 0, request, now_ns, prompt)


def cached(answer: Answer) -> int | None:
    assert answer.request is not None
    return answer.request.cached_tokens


def test_each_token_that_is_not_cached_delays_the_first_one():
    timetable = Timetable(SCHEDULE)
    first = asked(timetable, [9] * 10, 0)
    assert (first.due_ns, cached(first)) == (20 * MS, 0)
    second = asked(timetable, [9] * 10, 1 * MS)
    assert (second.due_ns, cached(second)) == (1 * MS + 10 * MS + 2 * MS, 8), "of 10 tokens 8 are in whole blocks"
    timetable.end(first, Ending.COMPLETE, 30 * MS)
    third = asked(timetable, [9] * 10 + [0, 1, 2, 3, 7], 30 * MS)
    assert (third.due_ns, cached(third)) == (30 * MS + 10 * MS + 3 * MS, 12), "so are 2 of the answer's 4"
    timetable.end(second, Ending.HANGUP, 31 * MS)
    assert cached(asked(timetable, [9] * 10 + [0, 1, 2, 3, 7], 31 * MS)) == 12


def test_a_cut_off_answer_is_not_kept():
    timetable = Timetable(SCHEDULE)
    timetable.end(asked(timetable, [9] * 10, 0), Ending.HANGUP, 30 * MS)
    assert cached(asked(timetable, [9] * 10 + [0, 1, 2, 3, 7], 30 * MS)) == 8


def test_a_request_is_looked_up_when_it_gets_a_slot():
    timetable = Timetable(msgspec.structs.replace(SCHEDULE, slots=1))
    first, second = asked(timetable, [9] * 10, 0), asked(timetable, [9] * 10 + [0, 1, 2, 3, 7], 5 * MS)
    assert (timetable.running, timetable.waiting, cached(second)) == (1, 1, None)
    timetable.end(first, Ending.COMPLETE, 30 * MS)
    assert (second.due_ns, second.begun_ns, cached(second)) == (43 * MS, 30 * MS, 12)
    assert (timetable.running, timetable.waiting) == (1, 0)


def test_without_a_cache_every_token_is_computed():
    script = Timetable(Schedule(0.01, 0.002, prompt_token_s=0.001)).script
    body = body_of("/v1/completions", b'{"prompt": "a b c", "stream": true}')
    steps = script.steps(completion_request("/v1/completions", body, "m"))
    assert [gap_ns for gap_ns, _ in steps][:2] == [13 * MS, 2 * MS]


def test_a_refused_request_is_not_looked_up():
    timetable = Timetable(msgspec.structs.replace(SCHEDULE, faults={Fault.HTTP_429: 1.0}))
    assert cached(asked(timetable, [9] * 10, 0)) is None
    assert timetable.cache is not None
    assert timetable.cache.queried_tokens == 0


def test_a_slower_replica_takes_longer_for_everything():
    slowed = SCHEDULE.slowed(1.5)
    assert (slowed.ttft_ns(4), slowed.dues_ns(0, 0, 2, 4)) == (21 * MS, [21 * MS, 24 * MS])
    assert msgspec.structs.replace(slowed, ttft_s=0.01, itl_s=0.002, prompt_token_s=0.001) == SCHEDULE
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadSchedule, match="slow must be a number above 0"):
            SCHEDULE.slowed(factor)


def question(*said: str) -> bytes:
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    fields: dict[str, Any] = {"max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    return posted("/v1/chat/completions", {"messages": messages, **fields})


def usage(reply: Reply) -> tuple[int, int]:
    """Tokens of the prompt, and those of them that were cached."""
    (counts,) = [event["usage"] for event in reply.events if event.get("usage")]
    return counts["prompt_tokens"], counts["prompt_tokens_details"]["cached_tokens"]


def values(port: int) -> dict[str, float | None]:
    return reader_of(METRICS).read(ask(port, b"GET /metrics HTTP/1.1\r\n\r\n").body)


def test_a_replica_shows_what_it_did_under_vllms_names():
    lines: list[Answered] = []
    with serving(QUICK, replica=3, on_end=lines.append) as server:
        first = usage(ask(server.port, question("word " * 100)))
        again = usage(ask(server.port, question("word " * 100, " a" * 20, "and now")))
        shown = values(server.port)
        assert ask(server.port, posted("/reset_prefix_cache", b"")).json == {"success": True}
        emptied = usage(ask(server.port, question("word " * 100)))
    assert (first, again, emptied) == ((102, 0), (126, 112), (102, 0)), "112 of 122 are in whole blocks of 16"
    records = [line for line in lines if isinstance(line, ReplicaAnswered)]
    assert [(record.replica, record.cached_tokens, record.queue_s) for record in records] == [
        (3, 0, 0.0), (3, 112, 0.0), (3, 0, 0.0),
    ]  # fmt: skip
    assert min(lateness_s(records, QUICK)) >= 0
    counted = {name: value for name, value in shown.items() if "_le_" not in name}
    times_s = [[ns / 1e9 for ns in (record.start_ns, *record.written_ns)] for record in records[:2]]
    ttft_s = sum(first - start for start, first, *_ in times_s)
    decode_s = sum(last - first for _, first, *_, last in times_s)
    assert counted == {
        "running": 0, "waiting": 0, "kv_usage_share": 0, "preemptions_total": 0,
        "prefix_queries_tokens_total": 228, "prefix_hits_tokens_total": 112,
        "prompt_tokens_total": 228, "output_tokens_total": 40,
        "ttft_s_count": 2, "ttft_s_sum": pytest.approx(ttft_s), "itl_s_count": 38,
        "itl_s_sum": pytest.approx(decode_s), "e2e_s_count": 2, "e2e_s_sum": pytest.approx(ttft_s + decode_s),
        "queue_s_count": 2, "queue_s_sum": 0, "prefill_s_count": 2, "prefill_s_sum": pytest.approx(ttft_s),
        "decode_s_count": 2, "decode_s_sum": pytest.approx(decode_s),
    }  # fmt: skip
    assert shown["ttft_s_le_2560"] == 2
    assert shown["itl_s_le_80"] == 38


def test_a_page_tells_who_runs_and_who_waits_and_a_cache_in_use_is_not_emptied():
    with serving(Schedule(5.0, 0.0, slots=1, cache_tokens=160)) as server:
        held, waiting = (connected(server.port, question("word " * 30)) for _ in range(2))
        while not server.answered[1:]:
            pass
        shown = values(server.port)
        assert (shown["running"], shown["waiting"], shown["kv_usage_share"]) == (1, 1, 0.2)
        assert ask(server.port, posted("/reset_prefix_cache", b"")).json == {"success": False}
        held.close()
        waiting.close()


def test_what_was_cut_off_counts_by_the_tokens_that_left():
    with serving(Schedule(0.0, 0.0, cache_tokens=160, tokens_per_chunk=3, faults={Fault.RESET: 1.0})) as server:
        assert ask(server.port, question("one two")).end == "reset"
        shown = values(server.port)
    assert (shown["output_tokens_total"], shown["prompt_tokens_total"], shown["ttft_s_count"]) == (9, 4, 0)


def test_a_server_without_these_options_shows_nothing():
    with serving(Schedule(0.0, 0.0)) as server:
        assert values(server.port) == {}
        assert ask(server.port, posted("/reset_prefix_cache", b"")).status == 404
    with serving(Schedule(0.0, 0.0), replica=1) as server:
        ask(server.port, question("one two"))
        assert values(server.port)["output_tokens_total"] == 20


def test_a_restart_empties_the_cache():
    server = TruthServer(SCHEDULE)
    with contextlib.closing(server):
        timetable = server._timetable
        for expected in (0, 8):
            answer = asked(timetable, [9] * 10, 0)
            assert cached(answer) == expected
            timetable.end(answer, Ending.COMPLETE, 1)
        server._restart(Change.DOWN, 2)
        assert cached(asked(timetable, [9] * 10, 3)) == 0


def connected(port: int, data: bytes) -> socket.socket:
    connection = connect(port)
    connection.sendall(data)
    return connection
