"""The bytes of answers: what each option changes, and that the quick way to make them makes the same."""

import itertools
import json
from typing import Any

import msgspec
import pytest

from bakeoff.harness.truth import Fault, Schedule
from bakeoff.harness.truth.answered import CHAT, COMPLETIONS, CompletionRequest
from bakeoff.harness.truth.payloads import VOCABULARY
from bakeoff.harness.truth.script import FINISH, ROLE, TOKENS, Script
from tests.harness.truth_client import Reply


def completion(tokens: int, *, chat: bool = False, **fields: Any) -> CompletionRequest:
    return CompletionRequest(path=CHAT if chat else COMPLETIONS, tokens=tokens, **fields)


def sent(schedule: Schedule, wanted: CompletionRequest) -> Reply:
    """All bytes that are written, as a client would receive them."""
    return Reply(b"".join(data for _, data in Script(schedule).steps(wanted)), "whole")


def texts(reply: Reply) -> list[str]:
    choices = [choice for event in reply.events for choice in event["choices"]]
    return [choice.get("text", choice.get("delta", {}).get("content")) for choice in choices]


GRID = [
    Schedule(0.5, 0.1, **fields)
    for fields in (
        {}, {"tokens_per_chunk": 3}, {"events_per_write": 4}, {"tokens_per_chunk": 7, "events_per_write": 3},
        {"role_chunk": "early"}, {"role_chunk": "with_first", "events_per_write": 2}, {"finish_chunk": False},
        {"jitter": "exponential"}, {"jitter": "exponential", "events_per_write": 3}, {"multibyte": True, "crlf": True},
        {"usage": "lying", "done": False, "token_ids": False},
    )
]  # fmt: skip


@pytest.mark.parametrize("schedule", GRID, ids=lambda schedule: repr(schedule)[9:])
def test_the_quick_way_gives_the_same_gaps_and_bytes_as_the_definition(schedule: Schedule):
    script = Script(schedule)
    for tokens, chat in itertools.product(
        (1, 2, 3, 4, 5, 8, 12, 13, 100, VOCABULARY, 2 * VOCABULARY + 1), (False, True)
    ):
        wanted = completion(tokens, chat=chat, number=tokens)
        assert script.is_ordinary(wanted)
        assert list(script.steps(wanted)) == [(write.gap_ns, write.data) for write in script.writes(wanted)]


@pytest.mark.parametrize("schedule", GRID, ids=lambda schedule: repr(schedule)[9:])
def test_every_token_is_sent_once_whatever_the_shape(schedule: Schedule):
    for tokens, chat in itertools.product((1, 7, 25), (False, True)):
        reply = sent(schedule, completion(tokens, chat=chat))
        assert reply.ids == (list(range(tokens)) if schedule.token_ids else [])
        pieces = "".join(text or "" for text in texts(reply))
        assert len(pieces.replace(" ", "")) == tokens
        assert reply.data.endswith(b"0\r\n\r\n")


def test_a_chunk_looks_like_that_of_a_real_server():
    for chat, kind in ((True, "chat.completion.chunk"), (False, "text_completion")):
        events = sent(Schedule(), completion(3, chat=chat, model="my/model")).events
        for event in events:
            assert {"id", "object", "created", "model", "choices"} <= set(event)
            assert (event["object"], event["model"]) == (kind, "my/model")
        chunk = next(data for _, data in itertools.islice(Script(Schedule()).steps(completion(3, chat=chat)), 1, None))
        assert 180 <= len(chunk) <= 260


def test_tokens_per_chunk_leaves_the_rest_to_the_last_one():
    events = sent(Schedule(tokens_per_chunk=4), completion(10)).events
    assert [event["choices"][0]["token_ids"] for event in events[:3]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [event["choices"][0]["text"] for event in events[:3]] == [" a a a a", " a a a a", " a a"]


def test_a_write_of_several_events_is_due_with_its_last():
    *body, _ = Script(Schedule(0.5, 0.1, events_per_write=4)).writes(completion(10))
    assert [write.gap_ns for write in body] == [800_000_000, 400_000_000, 200_000_000]
    assert [len(write.marks) for write in body] == [4, 4, 2]


def test_the_role_comes_early_or_with_the_first_tokens_and_only_in_chat():
    for when, gaps_ns in (("early", [0, 500_000_000]), ("with_first", [500_000_000, 0])):
        schedule = Schedule(0.5, 0.1, role_chunk=when)
        role, first, *_ = Script(schedule).writes(completion(2, chat=True))
        assert [role.gap_ns, first.gap_ns] == gaps_ns
        assert [kind for _, kind in role.marks] == [ROLE]
        assert b'"delta":{"role":"assistant","content":""}' in role.data
        assert b"role" not in sent(schedule, completion(2)).body
    assert b"role" not in sent(Schedule(), completion(2, chat=True)).body


def test_the_finish_reason_comes_alone_or_with_the_last_tokens():
    alone = sent(Schedule(), completion(3)).events
    reasons = [[choice["finish_reason"] for choice in event["choices"]] for event in alone]
    assert reasons == [[None], [None], [None], ["length"], []]
    assert alone[3]["choices"][0]["text"] == ""
    together = sent(Schedule(finish_chunk=False), completion(3)).events
    assert [[choice["finish_reason"] for choice in event["choices"]] for event in together] == [
        [None],
        [None],
        ["length"],
        [],
    ]
    *_, end = Script(Schedule(finish_chunk=False)).writes(completion(3))
    assert end.marks == ()


def test_usage_is_exact_absent_or_lying_and_sent_when_asked_for():
    def usage(schedule: Schedule, **fields: Any) -> Any:
        return sent(schedule, completion(5, prompt_tokens=9, **fields)).events[-1].get("usage")

    assert usage(Schedule()) == {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    assert usage(Schedule(usage="lying")) == {"prompt_tokens": 9, "completion_tokens": 10, "total_tokens": 19}
    assert usage(Schedule(usage="absent")) is None
    assert usage(Schedule(), usage_asked=False) is None


def test_done_and_token_ids_can_be_left_out():
    assert b"data: [DONE]\n\n" in sent(Schedule(), completion(1)).body
    assert b"DONE" not in sent(Schedule(done=False), completion(1)).body
    assert b"token_ids" not in sent(Schedule(token_ids=False), completion(3)).body


def test_lines_end_in_crlf_when_wanted():
    body = sent(Schedule(crlf=True, comments=True), completion(3)).body
    assert body.count(b"\n") == body.count(b"\r\n") > 8


def test_comments_come_half_way_in_writes_of_their_own():
    writes = list(Script(Schedule(0.5, 0.1, comments=True)).writes(completion(3)))
    assert [write.gap_ns for write in writes] == [500_000_000, 50_000_000, 50_000_000, 50_000_000, 50_000_000, 0]
    assert [b": ping\n\n" in write.data for write in writes] == [False, True, False, True, False, False]
    assert [bool(write.marks) for write in writes] == [True, False, True, False, True, True]


def test_multibyte_tokens_are_one_character_each():
    reply = sent(Schedule(multibyte=True, tokens_per_chunk=2), completion(7, chat=True))
    assert "".join(text or "" for text in texts(reply)) == "é漢🙂é漢🙂é"


@pytest.mark.parametrize("size", [1, 2, 7, 100, 100_000])
def test_pieces_are_the_same_bytes_and_the_marks_still_fit(size: int):
    shape = Schedule(0.5, 0.1, multibyte=True, crlf=True, events_per_write=2, role_chunk="early")
    wanted = completion(5, chat=True)
    whole = b"".join(write.data for write in Script(shape).writes(wanted))
    head, *pieces = Script(msgspec.structs.replace(shape, write_bytes=size)).writes(wanted)
    assert head.data.endswith(b"\r\n\r\n")
    assert head.data.count(b"\r\n\r\n") == 1
    assert head.data + b"".join(piece.data for piece in pieces) == whole
    assert max(len(piece.data) for piece in pieces) <= size
    assert sum(piece.gap_ns for piece in pieces) == 500_000_000 + 4 * 100_000_000
    offset, starts = len(head.data), {ROLE: [], TOKENS: [], FINISH: []}
    for piece in pieces:
        for at, kind in piece.marks:
            starts[kind].append(whole[offset + at :])
        offset += len(piece.data)
    assert [len(pieces) for pieces in starts.values()] == [1, 5, 1]
    assert all(json.loads(piece.split(b"data: ", 2)[1].partition(b"\r\n")[0]) for piece in starts[TOKENS])


def test_an_answer_that_is_no_stream_is_one_reply():
    (write,) = Script(Schedule(0.5, 0.1, tokens_per_chunk=2)).writes(
        completion(7, chat=True, stream=False, prompt_tokens=4)
    )
    assert write.gap_ns == 800_000_000
    body = Reply(write.data, "whole").json
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " a" * 7}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
    assert (
        Reply(next(Script(Schedule()).steps(completion(2, stream=False)))[1], "whole").json["choices"][0]["text"]
        == " a a"
    )


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.TRUNCATED, Fault.STALL])
def test_half_of_the_chunks_and_then_the_moment_of_the_fault(fault: Fault):
    for tokens, half in ((1, 1), (2, 1), (9, 4), (10, 5)):
        *body, moment = Script(Schedule(0.5, 0.1)).writes(completion(tokens, fault=fault))
        assert len(body) == half
        assert (moment.gap_ns, moment.data) == (100_000_000, b"")
        assert b"length" not in b"".join(write.data for write in body)


def test_the_chunks_made_are_bounded_however_long_the_answer():
    steps = Script(Schedule()).steps(completion(1_000_000))
    chunks = {data for _, data in itertools.islice(steps, 1, 3 * VOCABULARY)}
    assert len(chunks) == VOCABULARY
