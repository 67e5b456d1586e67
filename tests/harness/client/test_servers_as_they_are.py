"""Streams as servers of the field send them: each case stands for a kind that was once read wrongly."""

import gzip
import json
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bakeoff.engines.dialects import OpenAiDialect, TokenDelta
from bakeoff.harness.client.decode.exchange import decode_stream
from bakeoff.harness.client.wire.stream_content import is_answer
from bakeoff.results.records import Outcome, Phase, RequestRecord, StreamEnd, StreamRecord, TokenSource
from bakeoff.workloads import Tokenizer

DONE = b"data: [DONE]\n\n"
MS = 1_000_000


def event(data: Any, kind: str = "") -> bytes:
    return (f"event: {kind}\n" if kind else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


def chunk(content: Any = None, finish: Any = None, **delta: Any) -> dict[str, Any]:
    delta = {"content": content, **delta} if content is not None else delta
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def counted(output: Any, prompt: Any = 8, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}}


def words(count: int = 4) -> list[bytes]:
    return [event(chunk(" a")) for _ in range(count)]


def stream(reads: Sequence[bytes]) -> StreamRecord:
    read_ns = [(100 + 10 * number) * MS for number in range(len(reads))]
    return StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, ended_ns=read_ns[-1], end=StreamEnd.COMPLETE,
        status=200, requested_output_tokens=600, read_ns=read_ns, reads=list(reads),
    )  # fmt: skip


def decoded(*reads: bytes) -> RequestRecord:
    return decode_stream(stream(reads), OpenAiDialect(), None)


def ended(*tail: bytes) -> RequestRecord:
    return decoded(*words(), *tail)


STOP = event(chunk(finish="stop"))


class TestEnds:
    @pytest.mark.parametrize("reason", ["", "null", "None", None, 0, {}])
    def test_a_reason_that_says_nothing_proves_no_end(self, reason: Any) -> None:
        assert ended(event(chunk(finish=reason))).outcome is Outcome.TRUNCATED
        assert ended(event(chunk(finish=reason)), event(counted(4))).outcome is Outcome.TRUNCATED

    def test_but_the_usage_and_the_end_mark_do(self) -> None:
        assert ended(event(chunk(finish="")), event(counted(4)), DONE).outcome is Outcome.OK
        assert ended(DONE).outcome is Outcome.TRUNCATED
        whole = [*words(), event(counted(4)), DONE]
        assert is_answer(stream(whole), OpenAiDialect())
        assert not is_answer(stream(whole[:-1]), OpenAiDialect())

    @pytest.mark.parametrize(
        "reason",
        [
            "error",
            "ABORT",
            "cancelled",
            "out_of_memory",
            "oom",
            "preempted",
            "internal error",
            "kv-cache full",
            "timed out",
        ],
    )
    def test_a_reason_that_says_the_answer_was_given_up_is_a_failure(self, reason: str) -> None:
        record = ended(event(chunk(finish=reason)), event(counted(4)), DONE)
        assert (record.outcome, record.finish_reason) == (Outcome.STREAM_ERROR, None)
        assert reason in (record.error or "")

    @pytest.mark.parametrize(
        "data",
        [
            {"code": 500, "msg": "worker 3 lost"},
            {"errors": [{"message": "worker 3 lost"}]},
            {"error_code": 336, "error_msg": "worker 3 lost"},
            {"choices": None, "base_resp": {"status_code": 1004, "status_msg": "worker 3 lost"}},
            {"choices": [{"index": 0, "delta": {"content": ""}, "error": {"code": 502, "message": "worker 3 lost"}}]},
            {"choices": [{"index": 0, "delta": {"error": "worker 3 lost"}, "finish_reason": None}]},
            {"type": "error", "status": 500, "title": "worker 3 lost"},
        ],
        ids=str,
    )
    def test_an_error_in_mid_stream_is_a_failure_although_the_stream_ends_in_order(self, data: Any) -> None:
        record = ended(event(data), STOP, event(counted(4)), DONE)
        assert (record.outcome, record.error) == (Outcome.STREAM_ERROR, "worker 3 lost")

    def test_what_says_that_all_is_well_is_no_error(self) -> None:
        fine: dict[str, Any] = {**chunk(" a"), "code": 0, "error": None, "base_resp": {"status_code": 0}}
        assert ended(event(fine), STOP, event(counted(5)), DONE).outcome is Outcome.OK
        others: list[dict[str, Any]] = [
            {"code": 200, "status": "ok"}, {"error_code": 0, "error_msg": "ok"}, {"type": "ping"},
            {"code": 20000, "data": None}, {"code": 0, "message": "Success"}, {"code": {}, "data": []},
        ]  # fmt: skip
        for other in others:
            assert ended(event(other), STOP, event(counted(4)), DONE).outcome is Outcome.OK
        for more in ({"status": 0, "errmsg": "success"}, {"exception": "None"}, {"base_resp": {"status_code": "0"}}):
            assert ended(event({**chunk(" a"), **more}), STOP, event(counted(5)), DONE).outcome is Outcome.OK

    @pytest.mark.parametrize("kind", ["error", "exception", "server_error"])
    @pytest.mark.parametrize("data", [{"code": 500, "msg": "worker 3 lost"}, "worker 3 lost", ["worker 3 lost"]])
    def test_an_event_of_the_type_error_is_a_failure_whatever_it_holds(self, data: Any, kind: str) -> None:
        record = ended(event(data, kind), DONE)
        assert record.outcome is Outcome.STREAM_ERROR
        assert "worker 3 lost" in (record.error or "")

    def test_a_connection_that_breaks_behind_the_whole_answer_spoils_nothing(self) -> None:
        whole = [*words(), STOP, event(counted(4)), DONE]
        for reads, outcome in ((whole, Outcome.OK), (whole[:-1], Outcome.OK), (whole[:-2], Outcome.STREAM_ERROR)):
            broken = msgspec.structs.replace(stream(reads), end=StreamEnd.RESET)
            assert decode_stream(broken, OpenAiDialect(), None).outcome is outcome

    def test_a_last_event_needs_no_blank_line_if_it_is_whole(self) -> None:
        for cut in (1, 2):
            record = ended(STOP, event(counted(4))[:-cut])
            assert (record.outcome, record.output_tokens, record.usage_ns) == (Outcome.OK, 4, 150 * MS)
        assert ended(event(counted(4)), STOP[:-5]).outcome is Outcome.TRUNCATED

    def test_several_choices_each_end_with_a_reason(self) -> None:
        reads = [*words(), STOP, *words(), STOP]
        assert decoded(*reads).outcome is Outcome.OK
        called = event(chunk(finish="tool_calls", tool_calls=[{"function": {"name": "f"}}]))
        assert ended(event(chunk(" a", finish="stop")), called, event(counted(6))).outcome is Outcome.OK

    @pytest.mark.parametrize("reason", ["no_error", "failover_complete", "interrupted_by_stop_sequence", "stop"])
    def test_a_reason_that_only_looks_like_a_failure_is_none(self, reason: str) -> None:
        assert ended(event(chunk(finish=reason)), event(counted(4)), DONE).outcome is Outcome.OK

    def test_an_error_at_the_end_needs_no_blank_line(self) -> None:
        assert ended(STOP, event({"error": {"message": "boom"}})[:-1]).error == "boom"
        assert "boom" in (ended(STOP, event({"x": "boom"}, "error")[:-1]).error or "")
        record = ended(STOP, event(counted(4))[:-1], DONE[:-2])
        assert (record.outcome, record.output_tokens) == (Outcome.OK, 4)

    def test_a_reason_in_every_chunk_ends_nothing_but_the_last(self) -> None:
        every = [event(chunk(" a", finish="stop")) for _ in range(4)]
        assert decoded(*every).outcome is Outcome.TRUNCATED
        assert decoded(*every, DONE).outcome is Outcome.OK

    @pytest.mark.parametrize("mark", [b"[DONE]", b'"[DONE]"', b" [DONE]", b"[done]", b"DONE"])
    def test_the_end_mark_is_known_however_it_is_written(self, mark: bytes) -> None:
        record = ended(event(counted(4)), b"data: " + mark + b"\n\n")
        assert (record.outcome, record.output_tokens, record.error) == (Outcome.OK, 4, None)

    def test_any_status_of_success_is_one(self) -> None:
        created = msgspec.structs.replace(stream([*words(), STOP, DONE]), status=201)
        assert decode_stream(created, OpenAiDialect(), None).outcome is Outcome.OK

    def test_what_stands_between_events_explains_a_cut_stream(self) -> None:
        error = b'{"error":{"message":"CUDA out of memory","code":500}}\n'
        assert (ended(error).outcome, ended(error).error) == (Outcome.STREAM_ERROR, "CUDA out of memory")
        page = ended(b"<html>\r\n<title>504 Gateway Time-out</title>\r\n")
        assert page.outcome is Outcome.TRUNCATED
        assert (page.error or "").endswith("no event: <html> <title>504 Gateway Time-out</title>")
        assert ended(b"<br>\n", STOP, DONE).outcome is Outcome.OK

    def test_a_notice_or_an_error_that_says_nothing_fails_no_answer(self) -> None:
        assert ended(event({"status": "queued", "message": "position 3"}), STOP, DONE).outcome is Outcome.OK
        empty = [event(chunk(" a") | {"error": {"code": 0, "message": ""}}) for _ in range(4)]
        assert decoded(*empty, STOP, DONE).outcome is Outcome.OK

    def test_a_code_and_its_words_are_an_error(self) -> None:
        assert ended(event({"code": 50001, "msg": "quota exhausted", "data": None}), DONE).error == "quota exhausted"
        assert ended(event({"code": 0, "msg": "ok"}), STOP, DONE).outcome is Outcome.OK
        assert ended(event({"code": 20000, "msg": "success"}), STOP, DONE).outcome is Outcome.OK
        assert ended(event({"status": "generating", "msg": "go"}), STOP, DONE).outcome is Outcome.OK
        assert ended(event({"status": "running", "error_msg": "lost"}), STOP, DONE).error == "lost"
        assert ended(event({"msg": "in the queue"}), STOP, DONE).outcome is Outcome.OK

    def test_several_answers_at_once_are_told_and_not_mixed(self) -> None:
        def of(index: int, **fields: Any) -> bytes:
            return event({"choices": [{"index": index, "delta": {"content": " a"}, **fields}]})

        both = [of(index) for _ in range(4) for index in range(2)]
        assert decoded(*both, STOP, DONE).error == "2 answers came at once, which no figure tells apart; ask for n = 1"
        assert decoded(*(of(number) for number in range(4)), STOP, DONE).outcome is Outcome.OK
        blocks = [of(0), of(0), of(1), of(1), of(1)]  # of reasoning and text, as LiteLLM numbers them
        assert decoded(*blocks, STOP, event(counted(5)), DONE).chunk_tokens == [1] * 5

    def test_the_type_of_one_event_does_not_stick_to_the_next(self) -> None:
        assert ended(b"event: error\n\n", STOP, event(counted(4))).outcome is Outcome.OK


class TestNoStream:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b'{"error":{"message":"model m is not loaded","code":404}}', "model m is not loaded"),
            (b'{"detail":"busy"}', "busy"),
            (b'{"message": {"content": "a"}}\n{"done": true}\n', "lines of JSON, as of Ollama's own API"),
            (b"<!doctype html><title>Sign in</title>", "not a stream of events; it begins with: <!doctype html>"),
            (gzip.compress(b"data: x\n\n", mtime=0), "compressed, although no compression was asked for"),
            (zlib.compress(b"data: x\n\n"), "compressed, although no compression was asked for"),
            (b"\x0b\x04\x80data: x\n\n\x03", "compressed, although no compression was asked for"),  # Brotli
            ("<title>Zurück</title>".encode("latin-1"), "it begins with: <title>Zur"),
        ],
    )
    def test_another_answer_with_status_200_is_named(self, body: bytes, said: str) -> None:
        record = decoded(body)
        assert record.outcome is Outcome.STREAM_ERROR
        assert said in (record.error or "")

    def test_comments_alone_are_a_stream(self) -> None:
        record = decoded(b": still here\n\n")
        assert record.outcome is Outcome.TRUNCATED
        assert record.error == "the stream ended without any event"


class TestTolerance:
    @pytest.mark.parametrize(
        "line", [b"data:", b"data: ping", b"event: keepalive\ndata: alive", b"data: null", b'data: "ping"', b"data: []"]
    )
    def test_what_keeps_a_connection_open_says_nothing(self, line: bytes) -> None:
        record = decoded(*words(), line + b"\n\n", *words(), STOP, event(counted(8)), DONE)
        assert (record.outcome, record.chunk_tokens) == (Outcome.OK, [1] * 8)

    @pytest.mark.parametrize(
        "data",
        [
            b'{"choices":[{"delta":{"content":" a"},"logprobs":{"content":[{"logprob":-Infinity}]}}]}',
            b'{"choices":[{"delta":{"content":" a"}}],"load":NaN}',
            b'{"choices":[{"delta":{"content":"\\ud83d"}}]}',
            b'{"choices":[{"delta":{"content":"\xc3"}}]}',
        ],
        ids=str,
    )
    def test_json_as_other_languages_write_it_is_read(self, data: bytes) -> None:
        record = ended(b"data: " + data + b"\n\n", STOP, event(counted(5)), DONE)
        assert (record.outcome, len(record.chunk_ns)) == (Outcome.OK, 5)
        msgspec.json.encode(record)

    def test_events_without_blank_lines_between_them_are_told_apart(self) -> None:
        reads = [each[:-1] for each in (*words(), STOP, event(counted(4)), DONE)]
        record = decoded(*reads)
        assert (record.outcome, record.chunk_tokens) == (Outcome.OK, [1] * 4)

    def test_chunks_may_name_their_delta_message(self) -> None:
        reads = [event({"choices": [{"index": 0, "message": {"content": " a"}}]}) for _ in range(4)]
        assert decoded(*reads, STOP, event(counted(4)), DONE).text == " a a a a"
        whole = event({"choices": [{"index": 0, "message": {"content": " a a a a"}, "finish_reason": "stop"}]})
        assert ended(whole, event(counted(4)), DONE).text == " a a a a"
        both = chunk(" a")
        both["choices"][0]["message"] = {"content": " a a"}
        assert ended(event(both), STOP, DONE).text == " a a a a a"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("thinking", "so"), ("thought", "so"), ("reasoning_text", "so"), ("thinking_content", "so"),
            ("thinking_blocks", [{"type": "thinking", "thinking": "so"}]), ("reasoning", {"content": "so"}),
            ("reasoning_content", [{"type": "text", "text": "so"}]),
        ],
    )  # fmt: skip
    def test_reasoning_is_read_under_each_name(self, field: str, value: Any) -> None:
        record = decoded(event(chunk(**{field: value})), *words(), STOP, event(counted(5)), DONE)
        assert (record.chunk_kinds, record.text) == ("rtttt", "so a a a a")

    @pytest.mark.parametrize("choices", [None, []])
    def test_no_choices_are_none(self, choices: Any) -> None:
        record = ended(STOP, event({**counted(4), "choices": choices}), DONE)
        assert (record.outcome, record.output_tokens, record.token_source) == (Outcome.OK, 4, TokenSource.CHUNKS)

    @pytest.mark.parametrize("number", [4, 4.0, "4", " 4 "])
    def test_a_number_is_a_number(self, number: Any) -> None:
        assert ended(STOP, event(counted(number))).output_tokens == 4

    @pytest.mark.parametrize(
        "field", [{"logprobs": "none"}, {"token_ids": "x"}, {"finish_reason": 7}, {"delta": [1]}, {"usage": "later"}]
    )
    def test_a_field_of_another_type_fails_no_answer(self, field: dict[str, Any]) -> None:
        odd = {"choices": [{"index": 0, "delta": {"content": " a"}, "finish_reason": None, **field}]}
        record = decoded(event(odd), *words(), STOP, event(counted(4)))
        assert record.outcome is Outcome.OK

    @pytest.mark.parametrize(
        "field",
        [
            {"delta": {"content": [{"type": ["text"], "text": " a"}]}},
            {"delta": {"content": [{"type": "text", "text": " a"}]}, "logprobs": {"token_logprobs": [10**400]}},
            {"delta": {"content": " a"}, "logprobs": {"content": [{"logprob": True}]}},
        ],
    )
    def test_nor_does_one_inside_of_it(self, field: dict[str, Any]) -> None:
        (delta,) = OpenAiDialect().events(json.dumps({"choices": [field]}).encode())
        assert delta == TokenDelta(" a")

    @pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
    def test_a_byte_order_mark_is_no_part_of_the_first_event(self, cut: int) -> None:
        whole = b"\xef\xbb\xbf" + b"".join([*words(), STOP, event(counted(4)), DONE])
        record = decoded(*filter(None, (whole[:cut], whole[cut:])))
        assert (record.outcome, record.output_tokens, len(record.chunk_ns)) == (Outcome.OK, 4, 4)


class TestCounts:
    def test_hidden_reasoning_is_not_spread_over_what_was_streamed(self) -> None:
        record = ended(STOP, event(counted(500, completion_tokens_details={"reasoning_tokens": 496})), DONE)
        assert (record.output_tokens, record.token_source) == (4, TokenSource.CHUNKS)

    @pytest.mark.parametrize("more", [{"total_tokens": 8 + 4 + 480}, {}])
    def test_reasoning_beside_the_count_is_not_taken_off_it(self, more: dict[str, int]) -> None:
        usage = counted(4, completion_tokens_details={"reasoning_tokens": 480}, **more)
        assert ended(STOP, event(usage), DONE).output_tokens == 4

    @pytest.mark.parametrize(("output", "total"), [(4, 12), (2, 12)])
    def test_shown_reasoning_counts_once(self, output: int, total: int) -> None:
        shown = [event(chunk(reasoning_content=" hm")), event(chunk(reasoning=" hm")), *words(2)]
        usage = counted(output, completion_tokens_details={"reasoning_tokens": 2}, total_tokens=total)
        record = decoded(*shown, STOP, event(usage), DONE)
        assert (record.output_tokens, record.token_source) == (4, TokenSource.CHUNKS)

    def test_usage_behind_every_event_counts_each(self) -> None:
        reads = [event({**chunk(" a a a a"), "usage": counted(4 * (i + 1))["usage"]}) for i in range(5)]
        record = decoded(*reads, event({**chunk(finish="stop"), "usage": counted(20)["usage"]}), DONE)
        assert (record.chunk_tokens, record.token_source) == ([4] * 5, TokenSource.COUNTS)

    def test_hidden_reasoning_in_counts_behind_every_event_is_not_the_first_events(self) -> None:
        details = {"completion_tokens_details": {"reasoning_tokens": 480}}
        reads = [event({**chunk(" a"), "usage": counted(481 + i, **details)["usage"]}) for i in range(4)]
        record = decoded(*reads, STOP, event(counted(484, **details)), DONE)
        assert (record.chunk_tokens, record.output_tokens) == ([1] * 4, 4)

    @pytest.mark.parametrize("prompt", [0, 12])
    def test_zeros_before_an_answer_state_nothing(self, prompt: int) -> None:
        first = event(chunk("", role="assistant") | {"usage": counted(0, prompt)["usage"]})
        zeros = [event(chunk(" a") | {"usage": counted(0, 0)["usage"]}) for _ in range(4)]
        for rest in (words(), zeros):
            record = decoded(first, *rest, STOP, DONE)
            assert (record.outcome, record.output_tokens) == (Outcome.OK, 4)
            assert record.prompt_tokens == (prompt or None)

    def test_a_call_that_says_nothing_is_no_token(self) -> None:
        record = ended(event(chunk(tool_calls=[{"index": 0, "function": {"arguments": ""}}])), STOP, event(counted(4)))
        assert (record.chunk_tokens, record.chunk_kinds) == ([1, 1, 1, 1], "")

    def test_zeros_behind_an_answer_state_nothing(self) -> None:
        record = ended(STOP, event(counted(4)), event(counted(0, prompt=0)), DONE)
        assert (record.output_tokens, record.prompt_tokens) == (4, 8)

    @pytest.mark.parametrize(
        "hits",
        [
            {"prompt_tokens_details": {"cached_tokens": 6}}, {"prompt_cache_hit_tokens": 6}, {"cached_tokens": 6},
            {"num_cached_tokens": "6"}, {"input_tokens_details": {"cached_tokens": 6.0}},
            {"prompt_tokens_details": None, "cache_read_input_tokens": 6},
        ],
    )  # fmt: skip
    def test_hits_of_the_prefix_cache_are_read_wherever_they_stand(self, hits: dict[str, Any]) -> None:
        assert ended(STOP, event(counted(4, **hits))).cached_tokens == 6

    @pytest.mark.parametrize("place", ["choice", "x_groq"])
    def test_usage_is_read_wherever_it_stands(self, place: str) -> None:
        usage, last = counted(4)["usage"], chunk(finish="stop")
        if place == "choice":
            last["choices"][0]["usage"] = usage
        else:
            last["x_groq"] = {"usage": usage}
        assert ended(event(last), DONE).output_tokens == 4


class TestKinds:
    @pytest.mark.parametrize(
        "delta",
        [
            {"reasoning_content": " hm"},
            {"reasoning": " hm"},
            {"reasoning_details": [{"type": "reasoning.text", "text": " hm"}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " hm"}]}]},
            {"content": [{"type": "thinking", "thinking": " hm"}]},
            {"content": [{"type": "reasoning", "text": " hm"}]},
        ],
    )
    def test_reasoning_is_read_wherever_it_stands(self, delta: dict[str, Any]) -> None:
        (first, *_) = OpenAiDialect().events(json.dumps(chunk(**delta)).encode())
        assert (first.text, first.kind.value) == (" hm", "reasoning")  # type: ignore[union-attr]

    @pytest.mark.parametrize("delta", [{"content": [{"type": "text", "text": " a"}]}, {"refusal": " a"}])
    def test_so_is_text(self, delta: dict[str, Any]) -> None:
        (first, *_) = OpenAiDialect().events(json.dumps(chunk(**delta)).encode())
        assert (first.text, first.kind.value) == (" a", "text")  # type: ignore[union-attr]


class TestTokensOfEachKind:
    def test_each_chunk_keeps_its_kind(self) -> None:
        call = [{"index": 0, "function": {"arguments": "{"}}]
        both = chunk(" a", reasoning_content="hm")
        record = decoded(event(chunk(reasoning="so")), event(both), event(chunk(tool_calls=call)), STOP)
        assert record.chunk_kinds == "rrtc"
        assert decoded(*words(), STOP).chunk_kinds == "", "all of text"

    def test_counted_and_hidden_reasoning(self) -> None:
        details = {"completion_tokens_details": {"reasoning_tokens": 480}}
        hidden = ended(STOP, event(counted(484, **details)))
        assert (hidden.reasoning_tokens, hidden.hidden_tokens, hidden.output_tokens) == (480, 480, 4)
        shown = decoded(*(event(chunk(reasoning="a")) for _ in range(2)), *words(2), STOP,
                        event(counted(4, completion_tokens_details={"reasoning_tokens": 2})))  # fmt: skip
        assert (shown.reasoning_tokens, shown.hidden_tokens, shown.output_tokens) == (2, None, 4)
        assert shown.chunk_kinds == "rrtt"

    def test_a_summary_of_the_reasoning_hides_the_rest(self) -> None:
        details = {"completion_tokens_details": {"reasoning_tokens": 120}}
        record = decoded(
            *(event(chunk(reasoning=" a")) for _ in range(20)), *words(), STOP, event(counted(124, **details))
        )
        assert (record.reasoning_tokens, record.hidden_tokens, record.output_tokens) == (120, 100, 24)
        assert record.chunk_tokens == [1] * 24


class TestOwnCounts:
    def test_deltas_that_repeat_the_text_so_far_are_subtracted(self) -> None:
        texts = ["so", "so it", "so it goes", "so it goes on"]
        record = decoded(*(event(chunk(text)) for text in texts), STOP, event(counted(4)), DONE)
        assert (record.text, record.chunk_tokens) == ("so it goes on", [1, 1, 1, 1])
        assert decoded(*(event(chunk(text)) for text in texts[:3]), STOP, DONE).text == "".join(texts[:3])

    @pytest.mark.parametrize("counts", [[1] * 6, [3] * 6, [2, 3, 1, 3, 3, 1]])
    def test_usage_that_states_the_tokens_of_its_own_chunk_is_added_up(self, counts: list[int]) -> None:
        reads = [event({**chunk(" a" * count), "usage": {"completion_tokens": count}}) for count in counts]
        asked = msgspec.structs.replace(stream([*reads, STOP, DONE]), requested_output_tokens=18)
        record = decode_stream(asked, OpenAiDialect(), None)
        assert (record.output_tokens, record.chunk_tokens) == (sum(counts), counts)

    def test_equal_counts_whose_sum_is_the_last_total_are_of_their_own_chunk(self) -> None:
        reads = [event({**chunk(" a b c"), "usage": {"completion_tokens": 4}}) for _ in range(5)]
        assert decoded(*reads, STOP, event(counted(20)), DONE).chunk_tokens == [4] * 5

    def test_a_total_that_falls_at_the_end_is_of_another_server(self) -> None:
        assert ended(STOP, event(counted(4)), event(counted(1)), DONE).output_tokens == 4

    def test_a_total_behind_all_chunks_is_better_than_a_guess_before(self) -> None:
        assert decoded(event(counted(100)), *words(), STOP, event(counted(3)), DONE).output_tokens == 3

    def test_rejected_tokens_of_a_prediction_are_no_output(self) -> None:
        details = {"completion_tokens_details": {"reasoning_tokens": 0, "rejected_prediction_tokens": 40}}
        record = ended(STOP, event(counted(44, **details)), DONE)
        assert (record.output_tokens, record.chunk_tokens) == (4, [1] * 4)

    def test_of_a_call_its_name_and_arguments_are_tokens(self) -> None:
        letters = SimpleNamespace(starts=lambda text: list(range(len(text))))  # a token for each
        first = {"index": 0, "id": "call_0123456789", "type": "function", "function": {"name": "f", "arguments": ""}}
        later = [{"index": 0, "function": {"arguments": letter}} for letter in '{"a"}']
        reads = [event(chunk(tool_calls=[call])) for call in (first, *later)]
        record = decode_stream(stream([*reads, STOP, DONE]), OpenAiDialect(), cast("Tokenizer", letters))
        assert (record.chunk_tokens, record.token_source) == ([1] * 6, TokenSource.TOKENIZER)

    @pytest.mark.parametrize(("counts", "total"), [([3] * 8, 3), ([1] * 4, 1), ([1, 2, 3, 4, 5, 1, 2, 3], 8)])
    def test_totals_of_the_whole_answer_or_of_several_choices_are_not_added_up(
        self, counts: list[int], total: int
    ) -> None:
        reads = [event({**chunk("a"), "usage": {"completion_tokens": count}}) for count in counts]
        assert decoded(*reads, STOP, event(counted(total)), DONE).output_tokens == total

    def test_totals_that_fall_behind_the_chunks_are_totals(self) -> None:
        totals = (1, 2, 2, 3, 4, 5)
        reads = [event({**chunk(" a"), "usage": {"completion_tokens": total}}) for total in totals]
        assert decoded(*reads, STOP, DONE).output_tokens == 5

    def test_settings_of_reasoning_are_no_reasoning(self) -> None:
        reads = [event(chunk(" a", reasoning={"effort": "high", "summary": "auto"})) for _ in range(4)]
        assert decoded(*reads, STOP, event(counted(4)), DONE).text == " a a a a"

    def test_a_total_that_is_smaller_than_the_prompt_is_none(self) -> None:
        record = ended(STOP, event({"choices": [], "usage": {"prompt_tokens": 50, "total_tokens": 8}}), DONE)
        assert (record.output_tokens, record.chunk_tokens) == (4, [1] * 4)

    def test_a_total_stands_for_the_output(self) -> None:
        record = ended(STOP, event({"choices": [], "usage": {"prompt_tokens": 8, "total_tokens": 12}}), DONE)
        assert (record.output_tokens, record.token_source) == (4, TokenSource.CHUNKS)

    def test_log_probabilities_count_the_tokens_of_a_chunk(self) -> None:
        four = {"content": [{"logprob": -0.5}] * 4}
        data = chunk(" a b c d")
        data["choices"][0]["logprobs"] = four
        record = decoded(event(data), event(data), STOP, DONE)
        assert (record.chunk_tokens, record.token_source) == ([4, 4], TokenSource.COUNTS)
        four["content"] = [{"logprob": -0.5}]
        record = decoded(event(data), event(data), STOP, event(counted(8)), DONE)
        assert sum(record.chunk_tokens) == 8
        assert decoded(event(data), event(data), STOP, DONE).token_source is TokenSource.ESTIMATED
