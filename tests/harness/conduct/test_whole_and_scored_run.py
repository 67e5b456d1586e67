"""Answers that are no stream, mixes of models, pictures and scored answers, through the whole harness."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bakeoff.results import Run
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, Verdict
from bakeoff.results.report.verdict import verdict
from bakeoff.results.run.groups import by_model
from tests.engines.fakes.openai import FakeOpenAi
from tests.engines.fakes.stage import Script, event
from tests.harness.fake_runs import attached_run, only

PACE = Script(ttft_s=0.02, gap_s=0.002)
TIMES = ("ttft_p50_s", "tpot_p50_s", "itl_p50_s", "ttft_from_send_p50_s")


class Documents(FakeOpenAi):
    """Also answers embeddings and ranks; other answers are ``said``, in one document unless a stream is wanted."""

    def __init__(self, said: str = "") -> None:
        super().__init__(PACE)
        self.said = said

    def routes(self) -> list[web.RouteDef]:
        chat = web.post("/v1/chat/completions", self.document)
        passages = [web.post(f"/v1/{name}", self.passages) for name in ("embeddings", "rerank")]
        return [chat, *passages, web.get("/v1/models", self.models)]

    async def _asked(self, request: web.Request) -> dict[str, Any]:
        body = await request.json()
        self.bodies.append(body)
        await asyncio.sleep(PACE.ttft_s)
        return body

    async def passages(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        usage = {"total_tokens": 7}
        if "input" in body:
            data = [{"index": i, "embedding": [0.5] * 4} for i in range(len(body["input"]))]
            return web.json_response({"object": "list", "data": data, "usage": {"prompt_tokens": 7, **usage}})
        results = [{"index": i, "relevance_score": 0.5} for i in range(len(body["documents"]))]
        return web.json_response({"results": results, "usage": usage})

    async def document(self, request: web.Request) -> web.StreamResponse:
        body = await self._asked(request)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        if not body["stream"]:
            message = {"role": "assistant", "content": self.said or "a b c"}
            return web.json_response({"id": "c", "choices": [{**choice, "message": message}], "usage": usage})
        async with self.stream(request) as response:
            await response.write(event({"id": "c", "choices": [{**choice, "delta": {"content": self.said}}]}))
            await response.write(event({"choices": [], "usage": {**usage, "completion_tokens": 1}}) + event("[DONE]"))
        return response


def values(run: Run, *names: str) -> list[float | None]:
    return [run.finished[0].metrics[name].value for name in names]


@pytest.mark.parametrize("name", ["embeddings", "rerank"])
def test_passages_have_an_end_and_no_tokens(name: str, tmp_path: Path) -> None:
    fake = Documents()
    run = attached_run(tmp_path, fake, "openai", workload={"name": name, "options": {"input_tokens": 6}})
    trial, requests = only(run)
    assert trial.record.verdict is Verdict.VALID
    assert {request.outcome for request in requests} == {Outcome.OK}
    assert {(request.prompt_tokens, request.total_chunk_tokens) for request in requests} == {(7, 0)}
    assert values(run, *TIMES) == [None] * 4
    e2e_s, rate, prompts = values(run, "e2e_p50_s", "requests_per_s", "prompt_tokens_per_s")
    assert e2e_s
    assert rate
    assert prompts == pytest.approx(7 * rate)
    assert run.headline[:3] == ("e2e_p50_s", "prompt_tokens_per_s", "requests_per_s")
    assert verdict(run).sentence.startswith("openai: requests ")
    field = "input" if name == "embeddings" else "documents"
    assert all(len(body[field]) == (1 if name == "embeddings" else 16) for body in fake.bodies)


def test_a_chat_that_is_not_streamed_has_its_end_and_its_tokens(tmp_path: Path) -> None:
    chat = {"name": "chat", "options": {"scale": 0.02}}
    run = attached_run(tmp_path, Documents(), "openai", workload=chat, request={"stream": False})
    _, requests = only(run)
    assert {(request.outcome, request.total_chunk_tokens, request.text) for request in requests} == {
        (Outcome.OK, 3, "a b c")
    }
    assert values(run, *TIMES) == [None] * 4
    assert all(values(run, "e2e_p50_s", "output_tokens_per_s"))


def test_pictures_are_sent_and_the_engine_counts_them(tmp_path: Path) -> None:
    fake = Documents("a")
    options = {"scale": 0.02, "images": 2, "image_width": 20, "image_height": 10}
    run = attached_run(tmp_path, fake, "openai", workload={"name": "chat", "options": options})
    trial, requests = only(run)
    assert {(request.prompt_tokens, request.requested_input_tokens) for request in requests} == {(7, None)}
    assert FindingCode.INPUT_LENGTH not in {finding.code for finding in trial.record.warnings}
    urls = [part["image_url"]["url"] for body in fake.bodies for part in body["messages"][-1]["content"][:-1]]
    assert len(urls) == 2 * len(fake.bodies)
    assert base64.b64decode(urls[0].partition(",")[2]).startswith(b"\x89PNG")
    assert len(set(urls)) > len(urls) / 2, "pictures differ"


def test_models_share_the_sessions_by_their_weights(tmp_path: Path) -> None:
    fake = FakeOpenAi(PACE)
    mix = [{"name": "base", "weight": 3}, {"name": "sql-lora"}]
    workload = {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}, "models": mix}
    run = attached_run(tmp_path, fake, "openai", workload=workload, loads=[{"concurrency": 8}])
    rows = by_model(run)
    assert [row.name for row in rows] == ["base", "sql-lora"]
    assert sum(row.requests for row in rows) == run.cells[0].failures[1]
    assert 0.55 < rows[0].requests / sum(row.requests for row in rows) < 0.95
    assert rows[0].metrics["ttft_p50_s"].value
    assert {body["model"] for body in fake.bodies} >= {"base", "sql-lora"}


@pytest.mark.parametrize(("said", "right"), [("so it is\n#### 18", 1.0), ("19", 0.0)])
def test_answers_are_scored_beside_their_speed(said: str, right: float, tmp_path: Path) -> None:
    questions = [{"question": f"How many are {i} and {18 - i}?", "answer": "#### 18"} for i in range(60)]
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    options = {"path": str(file), "repeat": True, "format_options": {"score": True}}
    run = attached_run(tmp_path, Documents(said), "openai", workload={"name": "trace", "options": options})
    assert values(run, "right_share") == [right]
    interval = run.cells[0].intervals["right_share"]
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < right or right == 0.0
    assert interval.high - interval.low < 0.9
    assert run.finished[0].work.scored > 0
