"""Runs of an engine at several addresses: which address each request went to, and what every address is asked."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff import results
from bakeoff.engines import Access, Model, Server
from bakeoff.engines.addresses import Address, Role
from bakeoff.engines.deployment import Deployment
from bakeoff.engines.errors import NotReady
from bakeoff.engines.metrics import Prometheus
from bakeoff.engines.registry import engine
from bakeoff.engines.spec import EngineSpec
from bakeoff.harness.conduct.addresses import pages_of, reset_caches, running_addresses, targets_at
from bakeoff.harness.conduct.engine_start import started
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.reading import experiment_from, profiling
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.results.records import Phase, Verdict
from tests.harness.pages import page_server
from tests.results.one_request import ttft_from_send_s

LABELS = ("a:1", "b:2", "c:3")
URLS = [{"url": f"http://{label}"} for label in LABELS]
TRIAL = {"ramp_s": 0.2, "duration_s": 5.0, "warm_up_s": 0.0}


def measured(tmp_path: Path, *, urls: list[dict[str, str]] = URLS, **changes: Any) -> results.Run:
    options = {name: changes.pop(name) for name in ("balance",) if name in changes}
    engines = [{"adapter": "openai", "label": "e", "urls": urls, **options}]
    data: dict[str, Any] = {"loads": [{"concurrency": 6}], "trial": TRIAL, "repeats": 1, "engines": engines, **changes}
    world = VirtualWorld({"e": VirtualEngine(cache_block_tokens=4)})
    return run_in(world, virtual_experiment(["e"], **data), tmp_path)


def test_the_client_divides_requests_among_replicas_and_the_trial_says_how(tmp_path: Path) -> None:
    (trial,) = measured(tmp_path).finished
    assert trial.record.verdict is Verdict.VALID
    counts = Counter(request.address for request in trial.requests if request.phase is not Phase.WARMUP)
    assert counts.keys() == set(LABELS)
    assert max(counts.values()) - min(counts.values()) <= 1, "in turn"
    description = trial.record.engine_description
    assert description is not None
    assert [(each.label, each.role, each.url) for each in description.addresses] == [
        (label, "replica", f"http://{label}") for label in LABELS
    ]
    assert description.balance == "round-robin"


def test_a_virtual_address_may_have_a_model_of_its_own(tmp_path: Path) -> None:
    one = VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.01)), cache_block_tokens=4)
    at = {"http://b:2": msgspec.structs.replace(one, slowdown=2.0, cache_block_tokens=None)}
    experiment = virtual_experiment(
        ["e"], [{"concurrency": 3}], repeats=1, trial=TRIAL,
        engines=[{"adapter": "openai", "label": "e", "urls": URLS}],
    )  # fmt: skip
    (trial,) = run_in(VirtualWorld({"e": one}, at=at), experiment, tmp_path).finished
    seen = {
        (request.address, round(ttft_from_send_s(request) or 0.0, 9), request.cached_tokens is None)
        for request in trial.inside
    }
    assert seen == {("a:1", 0.1, False), ("b:2", 0.2, True), ("c:3", 0.1, False)}


def test_a_conversation_stays_at_its_address_from_the_load_s_beginning_on(tmp_path: Path) -> None:
    """Sessions in progress at the start have sent their earlier turns to the same address."""
    talks = {"name": "multi-turn", "options": {"scale": 0.1}}
    (trial,) = measured(tmp_path, balance="by-session", workload=talks).finished
    places: dict[str, set[str | None]] = {}
    for request in trial.requests:
        places.setdefault(request.session, set()).add(request.address)
    assert all(len(place) == 1 for place in places.values())
    assert len({place for each in places.values() for place in each}) > 1


def test_every_replica_is_primed(tmp_path: Path) -> None:
    talks = {"name": "multi-turn", "options": {"scale": 0.1}}
    (trial,) = measured(tmp_path, workload=talks, trial=TRIAL | {"cache": "primed"}).finished
    window = [request for request in trial.requests if request.phase is Phase.MEASURED]
    assert {request.address for request in window} == set(LABELS)
    assert min(request.cached_tokens or 0 for request in window) >= 96, "of a system prompt of 100 words"


def test_a_router_gets_all_requests_and_records_name_no_address(tmp_path: Path) -> None:
    urls = [{"url": "http://r:9", "role": "router"}, *URLS, {"url": "http://d:4", "role": "decode"}]
    (trial,) = measured(tmp_path, urls=urls).finished
    assert {request.address for request in trial.requests} == {None}
    description = trial.record.engine_description
    assert description is not None
    assert description.url == "http://r:9"
    assert [each.role for each in description.addresses] == ["router", "replica", "replica", "replica", "decode"]
    assert description.balance is None


ADDRESSES = [
    Address("http://r:9", Role.ROUTER),
    Address("http://a:1/v1"),
    Address("http://p:2", Role.PREFILL, "http://p:8/m?all=1"),
]


class TestWhatEachIsAsked:
    def made(self, addresses: list[Address]) -> Any:
        return engine("vllm", Model("m"), {}, EngineSpec(), Deployment(urls=addresses))

    def test_each_has_its_own_page_with_its_role_in_the_name(self) -> None:
        vllm = self.made(ADDRESSES)
        pages = pages_of(vllm, running_addresses(vllm))
        assert [(page.name, page.base_url, page.access.path(page.source.path)) for page in pages] == [
            ("router r:9", "http://r:9", "/metrics"),
            ("server a:1", "http://a:1", "/metrics"),
            ("prefill p:2", "http://p:8", "/m?all=1"),
        ]
        assert pages[2].access.query == "all=1", "it may be a secret, which the sampler masks"

    def test_the_page_of_one_address_may_be_elsewhere_too(self) -> None:
        vllm = self.made([Address("http://a:1", metrics="https://b:2")])
        (page,) = pages_of(vllm, running_addresses(vllm))
        assert (page.name, page.base_url, page.source.path) == ("server", "https://b:2", "/metrics")
        assert isinstance(page.source, Prometheus)

    def test_the_caches_of_all_but_the_router_are_emptied(self) -> None:
        vllm = self.made(ADDRESSES)
        asked: list[str] = []

        async def reset(server: Server) -> bool:
            asked.append(server.base_url)
            return server.base_url != "http://p:2"

        vllm.reset_cache = reset
        addresses = running_addresses(vllm)
        assert asyncio.run(reset_caches(vllm, addresses)) is False, "one of them refused"
        assert sorted(asked) == ["http://a:1", "http://p:2"]
        assert asyncio.run(reset_caches(vllm, addresses[:1])) is True
        assert asked[-1] == "http://r:9", "nothing else is known of the engine"

    def test_requests_go_to_the_router_or_are_divided(self) -> None:
        behind, alone = self.made(ADDRESSES), self.made(ADDRESSES[1:])
        assert [target.base_url for target in targets_at(running_addresses(behind))] == ["http://r:9"]
        assert [target.base_url for target in targets_at(running_addresses(alone))] == ["http://a:1"]

    def test_those_that_get_requests_are_described_and_differences_noted(self, tmp_path: Path) -> None:
        def say(version: str) -> Any:
            return lambda path: (200, f'{{"version": "{version}"}}') if path == "/version" else (404, "")

        async def scene(urls: list[str]) -> Any:
            vllm = self.made([*map(Address, urls), ADDRESSES[2]])
            async with started(vllm, "v", Model("m"), 1, tmp_path / "log") as under_test:
                return under_test.description

        with page_server(say("1.0")) as one, page_server(say("2.0")) as other:
            description = asyncio.run(scene([one.url, other.url]))
        assert description.version == "1.0"
        assert [each.version for each in description.addresses] == ["1.0", "2.0", None]
        labels = [url.removeprefix("http://") for url in (one.url, other.url)]
        assert f"{labels[1]} reports another version or other settings than {labels[0]}" in description.notes


def test_every_address_must_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def require_listener(_: VirtualWorld, url: str) -> None:
        if url == "http://c:3":
            raise NotReady(f"{url} cannot be reached")

    monkeypatch.setattr(VirtualWorld, "require_listener", require_listener)
    run = measured(tmp_path)
    assert not run.finished
    assert "http://c:3 cannot be reached" in (run.manifest.failure or "")


def test_what_cannot_be_measured_at_several_addresses_is_refused(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "name": "t", "loads": [{"concurrency": 1}], "workload": {"name": "chat"},
        "engines": [{"adapter": "vllm", "urls": URLS}],
    }  # fmt: skip
    with pytest.raises(BadExperiment, match="an engine with several urls or replicas cannot be profiled; give one"):
        profiling(experiment_from(data, "t"))
    with pytest.raises(BadExperiment, match="engine 'e': the adapter 'openai' reads no metrics page; remove metrics"):
        measured(tmp_path, urls=[*URLS, {"url": "http://d:4", "metrics": "http://d:5"}])


def test_credentials_go_to_every_address() -> None:
    deployment = Deployment(urls=[Address("http://a:1"), Address("http://b:2")], headers={"X-Key": "k"})
    made = engine("openai", Model("m"), {}, EngineSpec(), deployment)
    assert [each.server.access for each in running_addresses(made)] == [Access({"x-key": "k"})] * 2
