"""Calls of a conversation hold the answers that the server gave to the calls before them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.engines.dialects import HttpRequest, ReferenceDialect
from bakeoff.harness.client import Driver
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.live_history import History, filled, marked
from bakeoff.harness.client.wire.plan import wire_sessions
from bakeoff.harness.client.wire.transport import Ended, StreamLog
from bakeoff.harness.client.worker.session_feed import PreparedSession
from bakeoff.harness.errors import ClientFailed
from bakeoff.harness.host.clock import LoopClock, run_virtual
from bakeoff.results.records import StreamEnd
from bakeoff.workloads import PlannedSession, Session, Tokenizer, Turn, tokenizer_at
from bakeoff.workloads.prompts import rendered
from bakeoff.workloads.types import Message, ToolCall
from tests.harness.samples import DONE, FINISH, MemoryRecorder
from tests.workloads.small_tokenizers import checkpoint

SYSTEM = Message("system", "rules")


def conversation(*texts: str, agent: str = "", answers: str = "recorded") -> list[Turn]:
    """A turn for each question; each holds the turns before it with their recorded answers."""
    messages: tuple[Message, ...] = (SYSTEM,)
    turns: list[Turn] = []
    for number, text in enumerate(texts):
        messages = (*messages, Message("user", text))
        turns.append(Turn(9, 2, messages=messages, agent=agent, think_s=0.5 if number % 2 else 0.0))
        messages = (*messages, Message("assistant", f"{answers} {text}", reasoning="thought"))
    return turns


class Answering(ScriptedTransport):
    """Answers the n-th request by ``live n``, which a second later has ended; some fail."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        super().__init__([])
        self._failing = failing

    def start(self, prepared: HttpRequest, log: StreamLog, ended: Ended) -> None:
        number = len(self.sent)
        self.sent.append(prepared)
        choice = {"index": 0, "delta": {"content": f'live "{number}"\n'}, "finish_reason": None}
        chunk = {"choices": [{**choice, "token_ids": [1000 + number, 7]}]}
        log.sent_ns = LoopClock().now_ns()
        log.ended_ns = log.sent_ns + 1_000_000_000
        log.status = 500 if number in self._failing else 200
        log.reads, log.read_ns = [b"data: " + json.dumps(chunk).encode() + b"\n\n" + FINISH + DONE], [log.ended_ns]
        log.end = StreamEnd.COMPLETE
        asyncio.get_running_loop().call_at(log.ended_ns / 1e9, ended, log)


def bodies(
    turns: list[Turn], failing: frozenset[int] = frozenset(), *, history: History = History.LIVE
) -> list[list[Any]]:
    """Messages of each request, in the order in which they were sent."""
    return [json.loads(body)["messages"] for body in sent(turns, failing, history)]


def sent(
    turns: list[Turn], failing: frozenset[int], history: History, tokenizer: Tokenizer | None = None
) -> list[bytes]:
    """Bodies in the order in which they were sent."""

    async def scene() -> list[HttpRequest]:
        transport, dialect = Answering(failing), ReferenceDialect()
        driver = Driver(transport, clock=LoopClock(), recorder=MemoryRecorder(), timeout_s=30.0, dialect=dialect)
        planned = [PlannedSession(Session("s", tuple(turns)), None)]
        sessions = wire_sessions(planned, dialect, "m", history=history, tokenizer=tokenizer)
        await driver.closed_loop(sessions, 1, duration_s=60.0)
        return transport.sent

    return [request.body for request in run_virtual(scene())]


def assistants(messages: list[Any]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "assistant"]


def test_each_call_holds_the_servers_answers_so_far():
    sent = bodies(conversation("one", "two", "three", "four"))
    assert [assistants(messages) for messages in sent] == [
        [], ['live "0"\n'], ['live "0"\n', 'live "1"\n'], ['live "0"\n', 'live "1"\n', 'live "2"\n']
    ]  # fmt: skip
    assert [message["content"] for message in sent[2] if message["role"] == "user"] == ["one", "two", "three"]


def test_a_recorded_history_stays_as_it_is():
    sent = bodies(conversation("one", "two", "three"), history=History.RECORDED)
    assert assistants(sent[2]) == ["recorded one", "recorded two"]


def test_a_call_that_failed_leaves_the_recorded_answer():
    sent = bodies(conversation("one", "two", "three"), failing=frozenset({0}))
    assert assistants(sent[2]) == ["recorded one", 'live "1"\n']


def test_long_histories_are_filled_as_well():
    long = "word " * 3000
    sent = bodies(conversation(long, f"{long}b", f"{long}c"))
    assert assistants(sent[2]) == ['live "0"\n', 'live "1"\n']
    assert sent[2][1]["content"] == long


def test_agents_have_histories_of_their_own():
    main, sub = conversation("one", "two"), conversation("x", "y", agent="a")
    turns = [
        msgspec.structs.replace(turn, parents=parents, think_s=0.0)
        for turn, parents in zip((main[0], sub[0], sub[1], main[1]), ((), (0,), (1,), (0, 2)), strict=True)
    ]
    sent = bodies(turns)
    assert [assistants(messages) for messages in sent] == [[], [], ['live "1"\n'], ['live "0"\n']]


def test_an_agent_that_is_forked_holds_what_was_answered_before_it():
    first, second, third = conversation("one", "two", "three")
    fork = msgspec.structs.replace(third, agent="fork", parents=(1,))
    fourth = msgspec.structs.replace(third, parents=(1,))
    chain = [msgspec.structs.replace(turn, parents=parents) for turn, parents in ((first, ()), (second, (0,)))]
    sent = bodies([*chain, fork, fourth])
    assert [assistants(messages) for messages in sent[2:]] == [['live "0"\n', 'live "1"\n']] * 2


def test_a_history_that_starts_over_stays_as_recorded():
    first, second, third = conversation("one", "two", "three")
    compacted = msgspec.structs.replace(third, messages=(SYSTEM, Message("user", "summary")))
    entries = marked([first, second, compacted], "n")
    assert [entry.held for entry in entries] == [(), (0,), ()]
    assert [entry.answer for entry in entries] == ["recorded one", "", ""]
    assert entries[2].turn == compacted


def test_calls_of_tools_stay_beside_the_live_text():
    first, second = conversation("one", "two")
    called = Message("assistant", "", (ToolCall("c1", "look", "{}"),))
    tool = Message("tool", "found", tool_call_id="c1")
    second = msgspec.structs.replace(second, messages=(*(first.messages or ()), called, tool))
    (_, entry) = marked([first, second], "n")
    messages = entry.turn.messages or ()
    assert (messages[2].content, messages[2].tool_calls, messages[3]) == ("[answer-n-0]", called.tool_calls, tool)


def test_answers_are_written_as_json():
    body = filled(b'{"a":"[answer-n-0]","b":"[answer-m-0] [answer-n-11]"}', "n", {0: 'q"\\\n\u2028é', 11: "x"})
    assert json.loads(body) == {"a": 'q"\\\n\u2028é', "b": "[answer-m-0] x"}


def test_token_ids_continue_the_prompt_that_the_engine_has_seen(tmp_path: Path):
    tokenizer = tokenizer_at(str(checkpoint(tmp_path)))
    turns = conversation("one", "two", "three")

    def prompts(failing: frozenset[int] = frozenset()) -> list[list[int]]:
        return [json.loads(body)["prompt"] for body in sent(turns, failing, History.LIVE_IDS, tokenizer)]

    first, second, third = prompts()
    # the n-th answer has the tokens 1000 + n and 7
    assert second[: len(first) + 2] == [*first, 1000, 7]
    assert third[: len(second) + 2] == [*second, 1001, 7]
    assert tokenizer.decode(first) == rendered(turns[0], tokenizer)
    assert tokenizer.decode(third).endswith(rendered(conversation("three")[0], tokenizer)[-20:])
    _, second, third = prompts(failing=frozenset({0}))
    recorded = tokenizer.encode("recorded one")
    assert second[: len(first) + len(recorded)] == [*first, *recorded]
    assert third[: len(second) + 2] == [*second, 1001, 7]


def test_an_end_that_the_template_writes_too_is_not_repeated():
    body = b'{"prompt":[1,2,"[answer-n-0]",7,3,"[answer-n-1]",8,"[answer-n-2]",9]}'
    ids = json.loads(filled(body, "n", {0: "5,7", 1: "", 2: "9"}, as_ids=True))["prompt"]
    assert ids == [1, 2, 5, 7, 3, 8, 9]


def test_a_client_that_cannot_read_answers_refuses_a_live_history():
    planned = [PlannedSession(Session("s", tuple(conversation("one", "two"))), None)]
    (wire,) = wire_sessions(planned, ReferenceDialect(), "m", history=History.LIVE)
    with pytest.raises(ClientFailed, match="install the engine's adapter"):
        PreparedSession(wire, Answering(), None)
