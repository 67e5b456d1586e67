"""Ids in the headers of requests: one of each conversation and one of each request, new in each plan."""

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from bakeoff.engines.dialects import OpenAiDialect
from bakeoff.engines.request_shape import RequestShape, ShapedDialect
from bakeoff.harness.client.wire.orders import Pool
from bakeoff.harness.client.wire.plan import WireSession, read_wire, wire_sessions, write_wire
from bakeoff.results.units import NS_PER_S
from bakeoff.workloads import PlannedSession, Session, Turn

TURN = Turn(input_tokens=1, output_tokens=1, prompt="a")
DIALECT = ShapedDialect(OpenAiDialect(), RequestShape(headers={"X-Both": "{session}/{request}", "X-Same": "{1, 2}"}))


def wired(first: int = 0) -> list[WireSession]:
    planned = [PlannedSession(Session(name, (TURN, TURN)), None) for name in "ab"]
    return list(wire_sessions(planned, DIALECT, "m", first_index=first))


def of_session(session: WireSession) -> list[tuple[str, str]]:
    """The ids of conversation and request in each of its requests."""
    requests = [session.request(number, b"") for number in range(len(session.turns))]
    return [(request.headers["x-session-id"], request.headers["x-request-id"]) for request in requests]


def ids(sessions: list[WireSession]) -> list[tuple[str, str]]:
    return [pair for session in sessions for pair in of_session(session)]


def test_a_session_keeps_its_id_and_each_request_has_its_own() -> None:
    found = ids(wired())
    assert len({session for session, _ in found}) == 2
    assert len({request for _, request in found}) == 4
    assert found[0][0] == found[1][0] != found[2][0]
    (nonce,) = {value.partition("-")[0] for pair in found for value in pair}
    assert [value.removeprefix(nonce) for value in found[3]] == ["-00000002", "-00000003"]


def test_each_agent_of_a_session_has_an_id_of_its_own() -> None:
    turns = tuple(replace(TURN, agent=agent, parents=()) for agent in ("", "helper", "", "helper"))
    (session,) = wire_sessions([PlannedSession(Session("a", turns), None)], DIALECT, "m")
    main, helper, *later = (session.request(number, b"").headers["x-session-id"] for number in range(4))
    assert main != helper
    assert later == [main, helper]


def test_ids_are_new_in_each_plan_and_also_before_its_start() -> None:
    assert not set(ids(wired())) & set(ids(wired()))
    assert len(set(ids(wired(first=-4)))) == 4


def test_other_headers_are_filled_too_and_unknown_braces_stay() -> None:
    headers = wired()[0].request(1, b"").headers
    assert headers["x-both"] == f"{headers['x-session-id']}/{headers['x-request-id']}"
    assert headers["x-same"] == "{1, 2}"


def test_a_repeated_session_is_another_conversation(tmp_path: Path) -> None:
    path = tmp_path / "wire"
    write_wire([path], wired())
    pool = read_wire(Pool(str(path), stride=4))
    cycles = [[next(pool), next(pool)] for _ in range(2)]
    assert len({*ids(cycles[0]), *ids(cycles[1])}) == 8


@pytest.mark.parametrize(("count", "workers"), [(1, 3), (2, 5), (3, 7), (4, 4), (5, 2)])
def test_workers_together_send_what_one_worker_would(tmp_path: Path, count: int, workers: int) -> None:
    """A plan of fewer sessions than workers leaves no worker idle."""
    turns = (replace(TURN, parents=()),)

    def sent(files: int) -> list[list[tuple[int | None, int, int, str]]]:
        plan = [PlannedSession(Session(f"s{n}", turns), float(n)) for n in range(count)]
        paths = [tmp_path / f"{files}-{n}" for n in range(files)]
        cycles = write_wire(paths, wire_sessions(plan, DIALECT, "m", nonce="n"), count, count * NS_PER_S)
        pools = [Pool(str(path), cycles * count, cycles, cycles * count * NS_PER_S) for path in paths]
        return [
            [(each.offset_ns, each.index, each.cycle, each.id) for each in itertools.islice(read_wire(pool), 20)]
            for pool in pools
        ]

    ((*alone,),) = sent(1)
    parts = sent(workers)
    assert all(parts)
    merged = sorted(itertools.chain.from_iterable(parts))
    assert merged[:20] == alone
    assert len(set(merged)) == len(merged)


def test_a_session_in_progress_keeps_its_ids_from_what_fills_the_cache_to_its_rest() -> None:
    turns = tuple(replace(TURN, agent=agent, parents=()) for agent in ("", "helper", ""))
    parts = [
        PlannedSession(Session("a", turns[1:2]), None, play="b0.7"),
        PlannedSession(Session("a", turns), 1.0, play="b0.7"),
        PlannedSession(Session("a", turns), 1.0, play="b0.8"),
    ]
    encoded = (wire_sessions([part], DIALECT, "m", first_index=9 * n, nonce="n") for n, part in enumerate(parts))
    wired = [session for (session,) in encoded]
    (helper,), rest, other = ([pair[0] for pair in of_session(session)] for session in wired)
    assert rest[1] == helper
    assert rest[0] == rest[2] != helper
    assert not set(other) & set(rest)
    requests = [pair[1] for session in wired for pair in of_session(session)]
    assert len(set(requests)) == len(requests)
