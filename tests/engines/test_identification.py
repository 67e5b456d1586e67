"""Identification of running servers: each adapter recognises only its own."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from bakeoff.engines import Deployment, Launch, attached, launched, pick_port
from bakeoff.engines.adapters.tgi import TgiEngine
from bakeoff.engines.base import access_to
from bakeoff.engines.errors import EngineError, NotIdentified, NotReady
from bakeoff.engines.identification import identify, only_model, tokenizer_folder
from bakeoff.engines.identity import Identity
from bakeoff.engines.registry import adapter_class, adapter_names
from bakeoff.harness.errors import EvaluationFailed
from bakeoff.harness.quality.prompt_logprobs import PromptScorer
from tests.engines.fakes.anthropic import FakeAnthropic
from tests.engines.fakes.llama_cpp import FakeLlamaServer
from tests.engines.fakes.llama_cpp_python import FakeLlamaCppPython
from tests.engines.fakes.openai import FakeOpenAi
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.stage import Fake, running
from tests.engines.fakes.tensorrt_llm import TensorRtLlmFake
from tests.engines.fakes.tgi import FakeTgi
from tests.engines.fakes.triton import TritonFake

FAKES: dict[str, type[Fake]] = {
    "anthropic": FakeAnthropic,
    "llama_cpp": FakeLlamaServer,
    "llama_cpp_python": FakeLlamaCppPython,
    "openai": FakeOpenAi,
    "sglang": FakeSglang,
    "tensorrt_llm": TensorRtLlmFake,
    "tgi": FakeTgi,
    "triton": TritonFake,
}


def listed(**entry: Any) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": "smol", "object": "model", **entry}]}}


PAGES = {  # recorded from real servers that have no fake
    "vllm": listed(owned_by="vllm", root="/models/smol", max_model_len=2048),
    "reference": listed(owned_by="reference_engine", root="/models/smol"),
    "transformers": {"/openapi.json": {"info": {"title": "FastAPI"}, "paths": {"/load_model": {}}}},
}


def identified(fake: Fake, adapter: str | None = None) -> Identity:
    async def scene() -> Identity:
        async with running(fake) as url:
            return await identify(Deployment(url=f"{url}/v1"), adapter)

    return asyncio.run(scene())


@pytest.mark.parametrize("adapter", FAKES)
def test_every_fake_is_recognised_and_names_its_model(adapter: str):
    identity = identified(FAKES[adapter]())
    assert identity.adapter == adapter
    assert len(identity.models) == 1


@pytest.mark.parametrize("adapter", PAGES)
def test_pages_of_real_servers_are_recognised_by_their_own_adapter_alone(adapter: str):
    recognised = {
        name: identity for name in adapter_names() if (identity := adapter_class(name).identify(PAGES[adapter]))
    }
    recognised.pop("openai", None)  # it accepts every server that lists models, but comes last
    assert list(recognised) == [adapter]
    if adapter != "transformers":
        assert recognised[adapter] == Identity(adapter, ("smol",), "/models/smol")


def test_all_adapters_are_covered():
    assert {*FAKES, *PAGES} == set(adapter_names()) - {"quill"}


def test_a_named_adapter_is_not_guessed_and_takes_the_models_that_the_server_lists():
    assert identified(FakeOpenAi(), "openai").models == ("gpt-x",)
    assert identified(FakeOpenAi(), "vllm") == Identity("vllm", ("gpt-x",)), "behind a gateway"


class Refusing(Fake):
    """Answers every request with one status."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status

    def routes(self) -> list[web.RouteDef]:
        async def refused(_: web.Request) -> web.Response:
            return web.json_response({"error": {"message": "Incorrect API key provided"}}, status=self.status)

        return [web.route("*", "/{path:.*}", refused)]


@pytest.mark.parametrize(
    ("status", "access", "advice"),
    [
        (401, {}, "answers 401 Unauthorized, as it does without a key; put the key into an environment variable"),
        (403, {"api_key_env": "KEY"}, "answers 403 Forbidden to the key in KEY; correct it, or give the header"),
        (401, {"headers": {"authorization": "Bearer x"}}, "to the key of --header Authorization; correct that key"),
        (500, {}, r"does not say what it is \(/v1/models: HTTP 500\); give --engine \(openai,"),
        (599, {}, r"does not say what it is \(/v1/models: HTTP 599"),
    ],
)
def test_a_server_that_refuses_is_told_from_one_that_is_unknown(
    status: int, access: dict[str, Any], advice: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KEY", "x")

    async def scene() -> None:
        async with running(Refusing(status)) as url:
            with pytest.raises(NotIdentified, match=advice):
                await identify(Deployment(url=url, **access))

    asyncio.run(scene())


def test_an_address_where_nothing_listens_is_one_line():
    with pytest.raises(NotReady, match=r"^http://127\.0\.0\.1:\d+ cannot be reached: Connection refused; start the"):
        asyncio.run(identify(Deployment(url=f"http://127.0.0.1:{pick_port()}")))


def test_a_server_that_says_nothing_of_itself_is_not_identified():
    class Silent(Fake):
        def routes(self) -> list[Any]:
            return []

    with pytest.raises(NotIdentified, match="give --engine"):
        identified(Silent())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(True, "returned True, neither an Identity nor None"), (KeyError("data"), "failed with KeyError: 'data'")],
)
def test_an_adapter_that_fails_to_tell_is_named(monkeypatch: pytest.MonkeyPatch, answer: object, problem: str):
    def identify(_: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(TgiEngine, "identify", identify)
    with pytest.raises(NotIdentified, match=f"TgiEngine.identify {problem}; give another adapter with --engine"):
        identified(FakeTgi())
    assert identified(FakeOpenAi(), "openai").adapter == "openai"


class Elsewhere(Fake):
    """Redirects every request to another origin."""

    def __init__(self, origin: str) -> None:
        super().__init__()
        self.origin = origin

    def routes(self) -> list[web.RouteDef]:
        async def moved(request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"location": self.origin + request.path_qs})

        return [web.route("*", "/{path:.*}", moved)]


class Listening(Fake):
    """Keeps the headers of every request."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[Mapping[str, str]] = []

    def routes(self) -> list[web.RouteDef]:
        async def heard(request: web.Request) -> web.Response:
            self.headers.append(request.headers)
            return web.json_response({})

        return [web.route("*", "/{path:.*}", heard)]


def test_no_request_follows_a_redirect_with_the_users_headers(tmp_path: Path):
    other = Listening()
    deployment = {"headers": {"x-k": "sentinel"}}

    async def scene() -> None:
        async with running(other) as origin, running(Elsewhere(origin)) as url:
            with pytest.raises(NotIdentified, match=f"^{url} redirects to {origin}; give that address with --url$"):
                await identify(Deployment(url=url, **deployment))
            server = attached(url, access_to(Deployment(url=url, **deployment)))
            assert await server.get_json("/version") is None
            assert not await server.post("/reset_prefix_cache", {})
            async with aiohttp.ClientSession() as session:
                scorer = PromptScorer(session, Deployment(url=url, **deployment), "m")
                with pytest.raises(EvaluationFailed, match=f"^{url} redirects to {origin}; give"):
                    await scorer.predictions([1, 2])
            port = URL(url).port
            assert port is not None
            launch = Launch(("sleep", "60"), port, ready_timeout_s=0.5)
            with pytest.raises(NotReady, match=rf"last: HTTP 307 to {origin}/health"):
                async with launched(launch, tmp_path / "log", access_to(Deployment(**deployment))):
                    pass

    asyncio.run(scene())
    assert other.headers == []


@pytest.mark.parametrize(
    "page",
    [
        [{"id": "m"}],
        {"data": [{"id": "m"}, {"name": "broken"}, 7]},
        {"data": [{"id": "m", "owned_by": {"name": "x"}, "root": ["x"]}]},
        {"data": [{"id": "m"}, {"id": "m"}]},
        {"data": [{"id": "m", "object": "model", "type": "model"}]},
    ],
)
def test_one_odd_entry_hides_no_list_of_models(page: object):
    pages = {"/v1/models": page}
    recognised = [name for name in adapter_names() if adapter_class(name).identify(pages)]
    assert recognised == ["openai"]
    assert adapter_class("openai").identify(pages) == Identity("openai", ("m",))


@pytest.mark.parametrize("odd", [[], {"data": 7}, {"data": [{"name": "no id"}]}, {"data": []}, "text", None, 3])
def test_pages_of_another_shape_are_nobodys(odd: object):
    pages = dict.fromkeys(("/v1/models", "/info", "/props", "/v2", "/openapi.json"), odd)
    assert [name for name in adapter_names() if adapter_class(name).identify(pages)] == []


def test_the_one_model_is_taken_and_of_several_none():
    assert only_model(Identity("openai", ("m",)), "http://u") == "m"
    with pytest.raises(NotIdentified, match=r"serves 7 models; choose one with --model: m0, m1, m2, m3, m4, …"):
        only_model(Identity("openai", tuple(f"m{n}" for n in range(7))), "http://u")
    with pytest.raises(EngineError, match="give --model"):
        only_model(Identity("triton", ()), "http://u")


def test_a_tokenizer_is_found_beside_the_checkpoint_and_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "models/smol"
    assert tokenizer_folder("smol", str(folder)) is None
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    assert tokenizer_folder("smol", str(folder)) == folder
    (folder / "model.gguf").write_text(json.dumps({}))
    assert tokenizer_folder("smol", str(folder / "model.gguf")) == folder
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    assert tokenizer_folder("org/name", None) is None
    (snapshot / "tokenizer.json").write_text("{}")
    assert tokenizer_folder("org/name", None) == snapshot
    assert tokenizer_folder("served-as", "org/name") == snapshot
