"""Anthropic's Messages, and OpenAI's Responses, through the whole harness: counts, caches, keys, and no second try."""

import json
from pathlib import Path

import pytest

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, TokenSource
from tests.engines.fakes.answers import ScriptedAnswer
from tests.engines.fakes.anthropic import FakeAnthropic
from tests.engines.fakes.openai import FakeOpenAi
from tests.engines.fakes.stage import Script, Token
from tests.harness.fake_runs import attached_run, only

PACE = Script(ttft_s=0.02, gap_s=0.004)
SENTINEL = "sk-ant-sentinel-90210"


def chats(tmp_path: Path) -> dict[str, object]:
    """Chats that share a system prompt."""
    trace = tmp_path / "trace.jsonl"
    system = {
        "role": "system",
        "content": "You are the keeper of an old lighthouse and answer every visitor patiently.",
    }
    lines = (
        {"messages": [system, {"role": "user", "content": f"Tell me about night {number}"}], "max_tokens": 4}
        for number in range(40)
    )
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {"name": "trace", "options": {"path": str(trace)}}


def test_answers_are_counted_by_their_usage_and_its_parts_put_together(tmp_path: Path) -> None:
    fake = FakeAnthropic(PACE, ["novelties", "no-read-twice"])
    trial, requests = only(attached_run(tmp_path, fake, "anthropic", workload=chats(tmp_path)))
    assert {request.outcome for request in requests} == {Outcome.OK}
    assert {(r.prompt_tokens == r.requested_input_tokens, r.output_tokens, r.cached_tokens) for r in requests} == {
        (True, 4, 0)
    }
    assert {request.token_source for request in requests} == {TokenSource.CHUNKS}
    assert {request.finish_reason for request in requests} == {"max_tokens"}
    assert trial.record.engine_description is not None
    assert any("per token" in note for note in trial.record.engine_description.notes)


def test_a_completion_is_asked_as_a_chat_whose_template_comes_on_top(tmp_path: Path) -> None:
    trial, requests = only(attached_run(tmp_path, FakeAnthropic(PACE), "anthropic"))
    assert {request.requested_input_tokens for request in requests} == {8}
    assert all((request.prompt_tokens or 0) > 8 for request in requests)
    assert FindingCode.INPUT_LENGTH in {finding.code for finding in trial.record.warnings}
    assert trial.record.engine_description is not None
    assert any("the tokens of the chat template come on top" in note for note in trial.record.engine_description.notes)


def test_chunks_of_several_tokens_are_not_taken_for_tokens(tmp_path: Path) -> None:
    """Bias 5: chunks do not state their token counts, so the pace of tokens is apportioned, and a note says so."""
    trial, requests = only(attached_run(tmp_path, FakeAnthropic(Script(ttft_s=0.02, gap_s=0.01, group=2)), "anthropic"))
    assert {(len(request.chunk_ns), request.total_chunk_tokens) for request in requests} == {(3, 5)}
    assert {request.token_source for request in requests} <= {TokenSource.TOKENIZER, TokenSource.APPORTIONED}
    is_warned = FindingCode.TOKENS_APPORTIONED in {finding.code for finding in trial.record.warnings}
    assert is_warned == any(request.token_source is TokenSource.APPORTIONED for request in requests)


@pytest.mark.parametrize("adapter", ["anthropic", "openai"])
def test_a_refused_request_is_a_failure_and_never_tried_again(tmp_path: Path, adapter: str) -> None:
    """Bias 1 and 4: a client that tries again makes a rate limit look like latency."""
    status = 529 if adapter == "anthropic" else 429
    fake = {"anthropic": FakeAnthropic, "openai": FakeOpenAi}[adapter](PACE, refusals=[status] * 999)
    trial, requests = only(attached_run(tmp_path, fake, adapter))
    assert {(request.outcome, request.status) for request in requests} == {(Outcome.HTTP_ERROR, status)}
    assert "verloaded" in requests[0].error or "Rate limit reached" in requests[0].error
    assert 999 - len(fake.refusals) == len(trial.requests)


def test_an_overload_in_the_stream_is_a_failure(tmp_path: Path) -> None:
    script = ScriptedAnswer(answer=tuple(Token(100 + i, " a") for i in range(5)), fails_after=2)
    _, requests = only(attached_run(tmp_path, FakeAnthropic(script), "anthropic"))
    assert {(r.outcome, r.status, r.error) for r in requests} == {
        (Outcome.STREAM_ERROR, 200, "overloaded_error: Overloaded")
    }


def test_without_its_end_mark_an_answer_is_cut_off(tmp_path: Path) -> None:
    _, requests = only(attached_run(tmp_path, FakeAnthropic(PACE, ["torn"]), "anthropic"))
    assert {request.outcome for request in requests} == {Outcome.TRUNCATED}


def test_thoughts_are_tokens_and_the_first_of_them_is_the_first_token(tmp_path: Path) -> None:
    """Bias 2: thoughts precede the text; the client never requests them, but counts them where they come."""
    script = ScriptedAnswer(answer=tuple(Token(100 + i, f" w{i}") for i in range(5)), thinking=2, gap_s=0.01)
    fake = FakeAnthropic(script)
    _, requests = only(attached_run(tmp_path, fake, "anthropic"))
    assert not any("thinking" in body for body in fake.bodies)
    assert {(len(r.chunk_ns), r.total_chunk_tokens, r.text) for r in requests} == {(5, 5, " w0 w1 w2 w3 w4")}


class TestCache:
    def test_nothing_is_cached_unless_that_is_asked_for(self, tmp_path: Path) -> None:
        """Bias 3."""
        fake = FakeAnthropic(PACE)
        _, requests = only(attached_run(tmp_path, fake, "anthropic", workload=chats(tmp_path)))
        assert {request.cached_tokens for request in requests} == {0}
        assert all(isinstance(body["system"], str) for body in fake.bodies)

    def test_what_was_read_from_the_cache_is_part_of_the_prompt(self, tmp_path: Path) -> None:
        side = {"options": {"cache": "5m"}}
        fake = FakeAnthropic(PACE)
        _, requests = only(attached_run(tmp_path, fake, "anthropic", engine=side, workload=chats(tmp_path)))
        cached = {request.cached_tokens for request in requests}
        assert len(cached - {0}) == 1, "what the system says, after its first time"
        assert all((r.prompt_tokens or 0) > (r.cached_tokens or 0) for r in requests)


def test_the_key_goes_to_the_server_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
    fake = FakeAnthropic(PACE, key=SENTINEL)
    run = attached_run(tmp_path, fake, "anthropic", engine={"api_key_env": "BAKEOFF_TEST_KEY"})
    assert {request.outcome for request in only(run)[1]} == {Outcome.OK}
    assert {headers["anthropic-version"] for headers in fake.headers} == {"2023-06-01"}
    files = [file for file in run.path.rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if SENTINEL.encode() in file.read_bytes()] == []


class TestResponses:
    @pytest.mark.parametrize("faults", [(), ("bare-events", "called-completed")])
    def test_answers_are_read_with_and_without_event_lines(self, tmp_path: Path, faults: tuple[str, ...]) -> None:
        fake, official = FakeOpenAi(PACE, faults), not faults
        side = {"options": {"api": "responses", "official": official}}
        _, requests = only(attached_run(tmp_path, fake, "openai", engine=side, workload=chats(tmp_path)))
        assert {(r.outcome, r.finish_reason) for r in requests} == {(Outcome.OK, "max_output_tokens")}
        assert {(r.prompt_tokens == r.requested_input_tokens, r.output_tokens, r.token_source) for r in requests} == {
            (True, 4, TokenSource.CHUNKS)
        }
        assert {"stream_options" in body for body in fake.bodies} == {official}

    def test_hidden_thoughts_are_waited_for_and_not_counted_as_pace(self, tmp_path: Path) -> None:
        script = ScriptedAnswer(answer=tuple(Token(100 + i, f" w{i}") for i in range(5)), hidden=50, ttft_s=0.02)
        _, requests = only(
            attached_run(tmp_path, FakeOpenAi(script), "openai", engine={"options": {"api": "responses"}})
        )
        assert {(r.outcome, r.total_chunk_tokens, r.token_source) for r in requests} == {
            (Outcome.OK, 5, TokenSource.CHUNKS)
        }

    def test_a_stream_that_is_torn_is_cut_off(self, tmp_path: Path) -> None:
        side = {"options": {"api": "responses"}}
        _, requests = only(attached_run(tmp_path, FakeOpenAi(PACE, ["torn"]), "openai", engine=side))
        assert {request.outcome for request in requests} == {Outcome.TRUNCATED}


@pytest.mark.parametrize("official", [True, False])
def test_the_services_chats_are_read_padded_or_not(tmp_path: Path, official: bool) -> None:
    fake = FakeOpenAi(PACE)
    side = {"options": {"official": official}}
    _, requests = only(attached_run(tmp_path, fake, "openai", engine=side, workload=chats(tmp_path)))
    assert {(r.outcome, r.output_tokens, r.token_source) for r in requests} == {(Outcome.OK, 4, TokenSource.CHUNKS)}
    assert {request.text for request in requests} == {" Paris is the capital"}
