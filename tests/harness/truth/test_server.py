"""The truth server over real sockets: protocol, record, pressure. No test depends on how quick the machine is."""

import contextlib
import http.client
import itertools
import json
import socket
import time
from typing import Any

import msgspec
import pytest

from bakeoff import system
from bakeoff.harness.errors import TruthFailed
from bakeoff.harness.truth import Answered, Ending, Schedule, TruthServer
from bakeoff.harness.truth.connection import Connection
from bakeoff.harness.truth.record import lateness_s
from bakeoff.harness.truth.script import Script
from tests.harness.truth_client import ask, connect, connect_narrow, only, posted, read, request, serving

QUICK = Schedule(0.002, 0.0005)


@pytest.fixture(autouse=True, params=["epoll", "poll"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server waits with: Linux's way, and that of every POSIX system."""
    monkeypatch.setattr(system, "HAS_EPOLL", request.param == "epoll")


def bytes_of(schedule: Schedule, answered: Answered) -> bytes:
    return b"".join(write.data for write in Script(schedule).writes(answered))


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_is_the_bytes_of_the_script_and_nothing_is_early(chat: bool):
    schedule = Schedule(0.02, 0.003, tokens_per_chunk=2, role_chunk="early")
    with serving(schedule) as server:
        reply = ask(server.port, request(7, chat=chat, model="m"))
    answered = only(server)
    assert reply.data == bytes_of(schedule, answered)
    assert (answered.tokens, answered.model, answered.prompt_tokens) == (7, "m", 2 if chat else 3)
    assert (answered.ending, answered.number, answered.sends) == (Ending.COMPLETE, 0, [])
    assert len(answered.written_ns) == 4
    assert min(lateness_s([answered], schedule)) >= 0
    times_ns = [answered.start_ns, answered.role_ns, *answered.written_ns, answered.finish_ns, answered.ended_ns]
    known_ns = [t_ns for t_ns in times_ns if t_ns is not None]
    assert known_ns == sorted(known_ns)
    assert len(known_ns) == len(times_ns) - (not chat)


def test_lateness_does_not_add_up():
    schedule = Schedule(0.01, 0.001, jitter="exponential", events_per_write=3)
    with serving(schedule) as server:
        ask(server.port, request(50))
    answered = only(server)
    assert len(answered.written_ns) == 50
    assert len(set(answered.written_ns)) == 17
    assert min(lateness_s([answered], schedule)) >= 0
    early_s = schedule.dues_ns(answered.start_ns, 0, 50)[-1] - answered.written_ns[-1]
    assert early_s <= 0


def test_an_answer_that_is_no_stream_comes_when_the_stream_would_have_ended():
    schedule = Schedule(0.02, 0.005)
    with serving(schedule) as server:
        reply = ask(server.port, posted("/v1/completions", {"prompt": [5, 6], "max_tokens": 3}))
    answered = only(server)
    assert reply.json["choices"][0]["text"] == " a a a"
    assert reply.json["usage"]["prompt_tokens"] == 2
    assert answered.written_ns[0] - answered.start_ns >= 30_000_000
    assert not answered.stream


@pytest.mark.parametrize(
    ("path", "fields", "tokens", "prompt_tokens"),
    [
        ("/v1/completions", {"prompt": ""}, 16, 1),
        ("/v1/completions", {"prompt": ["a b", "c"], "max_tokens": 2}, 2, 3),
        ("/v1/completions?x=1", {"prompt": [[1, 2], [3]], "max_completion_tokens": 3, "max_tokens": 9}, 3, 3),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}]}]}, 16, 2),
        ("/v1/chat/completions", {"messages": [{"content": "a"}, {"content": None}], "temperature": 0.5}, 16, 1),
    ],
)
def test_requests_are_understood(path: str, fields: dict[str, Any], tokens: int, prompt_tokens: int):
    with serving(Schedule(0, 0)) as server:
        assert ask(server.port, posted(path, fields)).status == 200
    answered = only(server)
    assert (answered.tokens, answered.prompt_tokens, answered.usage_asked) == (tokens, prompt_tokens, False)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/completions", b"{", "not a request"),
        ("/v1/completions", b"[]", "not a request"),
        ("/v1/completions", b'{"prompt": "\xff"}', "not a request"),
        ("/v1/completions", {"max_tokens": 3}, "prompt is missing"),
        ("/v1/chat/completions", {"prompt": "a"}, "messages is missing"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "must be between 1 and"),
        ("/v1/completions", {"prompt": "a", "max_completion_tokens": 0}, "must be between 1 and"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 10**9}, "must be between 1 and"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "many"}, "max_tokens"),
    ],
)
def test_malformed_requests_get_400_and_the_connection_lives(path: str, body: Any, words: str):
    with serving(QUICK) as server, connect(server.port) as connection:
        connection.sendall(posted(path, body))
        reply = read(connection)
        assert reply.status == 400
        assert words in reply.json["error"]["message"]
        connection.sendall(request(2))
        assert read(connection).ids == [0, 1]
    assert only(server).number == 0


def test_what_is_no_http_gets_400_and_a_hang_up():
    with serving(QUICK) as server, connect(server.port) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        reply = read(connection)
        assert reply.status == 400
        assert connection.recv(1) == b""


def test_what_clients_probe_before_they_start():
    with serving(QUICK, model="my/model") as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port)

        def get(path: str) -> tuple[int, bytes]:
            client.request("GET", path)
            reply = client.getresponse()
            return reply.status, reply.read()

        status, body = get("/v1/models")
        assert (status, json.loads(body)["object"]) == (200, "list")
        assert [model["id"] for model in json.loads(body)["data"]] == ["my/model"]
        assert [get(path)[0] for path in ("/health", "/ping", "/metrics")] == [200, 200, 200]
        assert get("/metrics")[1] == b""
        status, body = get("/get_server_info")
        assert status == 404
        assert "no GET /get_server_info here" in json.loads(body)["error"]["message"]
        client.close()
    assert server.accepted == 1
    assert server.answered == []


def test_connections_are_kept_and_numbered():
    with serving(QUICK) as server, connect(server.port) as first, connect(server.port) as second:
        for connection in (first, second, first):
            connection.sendall(request(2))
            assert read(connection).ids == [0, 1]
    assert [(answered.number, answered.connection) for answered in server.answered] == [(0, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize(("version", "header"), [("1.1", "Connection: close\r\n"), ("1.0", "")])
def test_a_connection_is_closed_after_the_answer_when_the_client_wants_that(version: str, header: str):
    data = posted("/v1/completions", {"prompt": "a", "max_tokens": 2}, header).replace(
        b"HTTP/1.1", b"HTTP/" + version.encode()
    )
    with serving(QUICK) as server, connect(server.port) as connection:
        connection.sendall(data)
        assert read(connection).status == 200
        assert connection.recv(1) == b""


def test_a_body_that_waits_for_permission_gets_it():
    body = b'{"prompt": "a", "max_tokens": 2}'
    data = posted("/v1/completions", body, "Expect: 100-continue\r\n")
    with serving(QUICK) as server, connect(server.port) as connection:
        connection.sendall(data.removesuffix(body))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read(connection).status == 200


def test_a_request_in_pieces_starts_when_it_is_complete():
    data = request(2)
    with serving(QUICK) as server, connect(server.port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(data)):
            connection.sendall(data[i : i + 1])
        assert read(connection).ids == [0, 1]
    assert only(server).prompt_tokens == 3


def test_a_second_request_before_the_end_of_the_first_ends_the_connection():
    with serving(Schedule(5, 0)) as server, connect(server.port) as connection:
        connection.sendall(request(2))
        while not server.answered:  # the first must not come together with the second
            pass
        connection.sendall(request(2))
        assert read(connection).end in {"fin", "reset"}
    assert only(server).ending is Ending.HANGUP


def test_two_requests_in_one_read_are_refused():
    with serving(Schedule(5, 0)) as server, connect(server.port) as connection:
        connection.sendall(request(2) * 2)
        assert read(connection).status == 400
        assert connection.recv(1) == b""
    assert server.answered == []


def test_a_client_that_hangs_up_ends_its_answer_and_no_other():
    schedule = Schedule(0.001, 0.05)
    with serving(schedule) as server:
        with connect(server.port) as leaving:
            leaving.sendall(request(100_000))
            assert leaving.recv(10)
        for _ in range(60):  # one of these has the descriptor of the first when the next write of that was due
            assert ask(server.port, request(1)).ids == [0]
    first, *other_answers = server.answered
    assert first.ending is Ending.HANGUP
    assert first.written_ns
    assert len(first.written_ns) < 100_000
    assert first.ended_ns is not None
    assert first.ended_ns >= first.written_ns[-1]
    assert {answered.ending for answered in other_answers} == {Ending.COMPLETE}


def test_an_answer_that_has_ended_writes_nothing_to_whoever_has_its_descriptor_now():
    server = TruthServer(QUICK)
    server_end, client_end = socket.socketpair()
    with contextlib.closing(server), server_end, client_end:
        client_end.setblocking(False)
        fd = server_end.fileno()
        server._connections[fd] = Connection(server_end, 0)
        for ended in (False, True):
            answer = server._timetable.add_reply(fd, 0, b"bytes", 5)
            if ended:
                server._timetable.end(answer, Ending.HANGUP, 6)
            assert server._timetable.due(7) == 0
            server._write(time.monotonic_ns() + 10**9)
            assert not server._timetable.ready
        assert server._connections.pop(fd).fd == fd, "the connection of whoever has the descriptor stays open"
        assert client_end.recv(100) == b"bytes"
        with pytest.raises(BlockingIOError):
            client_end.recv(100)


def test_a_client_that_does_not_read_loses_nothing_and_the_record_knows_when_the_rest_went():
    schedule = Schedule(0, 0, role_chunk="with_first", events_per_write=4_000)
    with serving(schedule) as server, connect_narrow(server) as connection:
        connection.sendall(request(4_000, chat=True))
        ask(server.port, request(1))  # the other connections are served meanwhile
        reply = read(connection)
    other, slow = sorted(server.answered, key=lambda answered: answered.tokens)
    assert reply.data == bytes_of(schedule, slow)
    assert reply.ids == [i % 960 for i in range(4_000)]
    assert sum(count for _, count in slow.sends) == len(reply.data)
    assert len(slow.sends) > 3  # the second of the three writes is larger than the kernel's buffers
    assert len(slow.written_ns) == 4_000
    assert all(a <= b for a, b in itertools.pairwise(slow.written_ns))
    assert slow.ended_ns is not None
    assert other.ended_ns is not None
    assert other.ended_ns < slow.ended_ns


@pytest.mark.parametrize("size", [1, 40])
def test_small_writes_are_sends_of_their_own(size: int):
    schedule = Schedule(0.001, 0, write_bytes=size, multibyte=True, crlf=True)
    with serving(schedule) as server:
        reply = ask(server.port, request(6, chat=True))
    answered = only(server)
    assert reply.data == bytes_of(schedule, answered)
    head = len(reply.data.partition(b"\r\n\r\n")[0]) + 4
    assert answered.sends[0][1] == head
    assert {count for _, count in answered.sends[1:-1]} <= set(range(1, size + 1))
    assert sum(count for _, count in answered.sends) == len(reply.data)
    sent_ns = [t_ns for t_ns, _ in answered.sends]
    assert len(answered.written_ns) == 6
    assert set(answered.written_ns) <= set(sent_ns)
    assert answered.finish_ns in sent_ns


def test_comments_do_not_count_as_tokens():
    schedule = Schedule(0.002, 0.002, comments=True)
    with serving(schedule) as server:
        reply = ask(server.port, request(5))
    assert reply.body.count(b": ping\n\n") == 4
    assert len(only(server).written_ns) == 5
    assert min(lateness_s([only(server)], schedule)) >= 0


def test_many_streams_at_once_are_all_whole():
    connections = []
    with serving(Schedule(0.02, 0.001)) as server:
        for _ in range(200):
            connections.append(connect(server.port))
            connections[-1].sendall(request(20))
        for connection in connections:
            assert read(connection).ids == list(range(20))
            connection.close()
    assert len(server.answered) == server.accepted == 200
    assert [answered.number for answered in server.answered] == list(range(200))
    assert server.endings[Ending.COMPLETE] == 200


def test_nagle_is_off_on_what_is_accepted():
    with serving(QUICK) as server, connect(server.port) as connection:
        connection.sendall(request(1))
        read(connection)
        (accepted,) = server._connections.values()
        assert accepted._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_ended_answers_are_reported_and_those_cut_off_by_the_end_too():
    answers: list[Answered] = []
    with serving(Schedule(0.001, 0.001), keep=False, on_end=answers.append) as server:
        ask(server.port, request(3))
        under_way = connect(server.port)
        under_way.sendall(request(1_000_000))
        assert under_way.recv(10)
    under_way.close()
    assert server.answered == []
    assert [answered.ending for answered in answers] == [Ending.COMPLETE, Ending.STOPPED]
    assert len(answers[0].written_ns) == 3
    assert answers[1].written_ns
    assert msgspec.json.decode(msgspec.json.encode(answers), type=list[Answered]) == answers


def test_a_port_that_is_taken_is_refused_in_one_line():
    with (
        serving(QUICK) as server,
        pytest.raises(TruthFailed, match=r"cannot listen on 127.0.0.1:\d+ \(Address already"),
    ):
        TruthServer(QUICK, server.port)
