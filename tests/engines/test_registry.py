"""Adapters by name: each mistake is one line with a suggestion."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bakeoff.engines import (
    Deployment,
    EngineError,
    EngineSpec,
    Model,
    adapter_names,
    attached,
    check,
    dialect,
    engine,
    registry,
    server_engine,
)
from bakeoff.engines.adapters.reference import ReferenceEngine, ReferenceOptions
from bakeoff.engines.environments import Environment
from bakeoff.engines.errors import BadAdapter, BadOption, NotInstalled, UnknownEngine
from bakeoff.engines.request_shape import plain_dialect
from bakeoff.engines.server_engine import ServerEngine

SOMEWHERE = Deployment(url="http://127.0.0.1:1")
OTHERS = """
from bakeoff.engines.request_shape import plain_dialect
from bakeoff.engines.dialects import ReferenceDialect

class Bare:
    adapter = "bare"

    class Options(__import__("msgspec").Struct, frozen=True, forbid_unknown_fields=True):
        depth: int = 1

    @classmethod
    def dialect_for(cls, setup):
        return ReferenceDialect()

    def __init__(self, setup):
        self.setup = setup
        self.dialect = self.dialect_for(setup)
        self.url = self.access = self.metrics = None
        self.model_id, self.notes = "bare", ()

    def gpus(self):
        return None

    def launch(self, port):
        return None

    async def reset_cache(self, server):
        return False

    async def describe(self, server):
        return {}


class HalfDialect:
    name = "half"


class Half(Bare):
    @classmethod
    def dialect_for(cls, setup):
        return HalfDialect()


class Idle(Bare):
    launch = property()
"""


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Adapters of another package: one implements the protocol and nothing else, others not even that."""
    (tmp_path / "bare_engine.py").write_text(OTHERS)
    info = tmp_path / "bare_engine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bare-engine\nVersion: 1\n")
    named = "bare = bare_engine:Bare\nbroken = bare_engine:Missing\nreference = bare_engine:Bare\n"
    named += "half = bare_engine:Half\nidle = bare_engine:Idle\nno_class = bare_engine:HalfDialect\n"
    (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\n{named}")
    monkeypatch.syspath_prepend(tmp_path)
    registry._others.cache_clear()
    yield
    registry._others.cache_clear()


def test_every_adapter_that_comes_along_says_its_name_and_its_dialect() -> None:
    assert {"openai", "reference", "transformers"} <= set(adapter_names())
    for name in adapter_names():
        made = engine(name, Model("smol", "/models/smol"), {}, deployment=SOMEWHERE)
        assert (made.adapter, made.url) == (name, SOMEWHERE.url)
        assert type(plain_dialect(made.dialect)) is type(dialect(name, {}, SOMEWHERE))


def test_an_engine_at_an_address_needs_no_package_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> Environment:
        raise NotInstalled("it was looked for here")

    monkeypatch.setattr(server_engine, "find", find)
    for name in adapter_names():
        made = engine(name, Model("smol"), {}, deployment=SOMEWHERE)
        assert isinstance(made, ServerEngine)
        assert (made.launch(9000), made.installed_version()) == (None, None)
        assert made.gpus() == os.environ.get("CUDA_VISIBLE_DEVICES")
        asyncio.run(made.describe(attached(made.url or "")))


def test_what_is_asked_for_reaches_the_engine() -> None:
    spec = EngineSpec(max_num_seqs=8)
    made = engine("reference", Model("smol"), {"block_size": 16}, spec, Deployment(port=9000))
    assert isinstance(made, ReferenceEngine)
    assert made.setup.options == ReferenceOptions(block_size=16)
    assert (made.setup.spec, made.setup.deployment.port, made.setup.model.name) == (spec, 9000, "smol")


def by_check(name: str, options: Mapping[str, Any], spec: EngineSpec, deployment: Deployment) -> None:
    check(name, options, spec, deployment)


def by_making(name: str, options: Mapping[str, Any], spec: EngineSpec, deployment: Deployment) -> None:
    engine(name, Model("m"), options, spec, deployment)


@pytest.mark.parametrize("make", [by_check, by_making])
@pytest.mark.parametrize(
    ("adapter", "options", "spec", "deployment", "error", "message"),
    [
        ("transformer", {}, {}, {}, UnknownEngine, "unknown engine 'transformer'; did you mean 'transformers'?"),
        ("zzz", {}, {}, {}, UnknownEngine, "unknown engine 'zzz'; known: "),
        ("reference", {"blok_size": 16}, {}, {}, BadOption,
         "engine 'reference' has no option 'blok_size'; did you mean 'block_size'? known: device, load_format"),
        ("reference", {"block_size": "16"}, {}, {}, BadOption,
         "engine 'reference': Expected `int | null`, got `str` - at `$.block_size`"),
        ("transformers", {"continuous_batching": 1}, {}, {}, BadOption,
         "engine 'transformers': Expected `bool`, got `int` - at `$.continuous_batching`"),
        ("reference", {"dtype": "float32"}, {}, {}, BadOption,
         "engine 'reference' has no option 'dtype'; it belongs in spec"),
        ("reference", {"url": "http://x"}, {}, {}, BadOption,
         "engine 'reference' has no option 'url'; it belongs in the engine's own table, beside options"),
        ("openai", {}, {}, {}, BadOption, "engine 'openai' needs the url of a server that runs already"),
        ("transformers", {}, {"pipeline_parallel_size": 2}, {}, BadOption,
         "engine 'transformers' cannot be told pipeline_parallel_size: it has no such setting; leave it out"),
        ("reference", {}, {}, {"url": "http://x", "port": 9}, BadOption,
         "engine 'reference': port cannot be set of an engine that runs already"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_the_remedy_before_anything_is_made(
    make: Callable[..., None], adapter: str, options: dict[str, object], spec: dict[str, Any],
    deployment: dict[str, Any], error: type[EngineError], message: str,
) -> None:  # fmt: skip
    with pytest.raises(error) as caught:
        make(adapter, options, EngineSpec(**spec), Deployment(**deployment))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("headers", [{"x-a": "b\r\nx-injected: 1"}, {"a\nb": "c"}, {"": "c"}, {"x-a": "\u20ac"}])
def test_what_would_be_another_header_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(BadOption, match="header") as raised:
        engine("openai", Model("m"), {}, deployment=Deployment(url="http://127.0.0.1:9", headers=headers))
    assert "injected" not in str(raised.value), "values are secrets"


def test_an_address_that_is_none_is_refused_when_the_engine_is_made() -> None:
    with pytest.raises(BadOption, match="url must begin with http"):
        engine("reference", Model("m"), {}, deployment=Deployment(url="127.0.0.1:8000"))


def test_shared_settings_are_not_told_to_a_server_that_runs_already() -> None:
    check("openai", {}, EngineSpec(dtype="float32", tensor_parallel_size=4), SOMEWHERE)


@pytest.mark.usefixtures("others")
class TestOtherPackages:
    def test_their_adapters_stand_beside_our_own_and_need_no_base(self) -> None:
        assert adapter_names()[-5:] == ("bare", "broken", "half", "idle", "no_class")
        check("bare", {"depth": 2}, EngineSpec(), Deployment())
        made = engine("bare", Model("m"), {"depth": 2})
        assert (made.adapter, made.dialect.name) == ("bare", "reference")
        assert dialect("bare", {}, Deployment()).name == "reference"

    def test_they_cannot_take_the_name_of_one_of_ours(self) -> None:
        assert isinstance(engine("reference", Model("m"), {}), ReferenceEngine)
        assert adapter_names().count("reference") == 1

    def test_their_options_are_checked_alike(self) -> None:
        with pytest.raises(BadOption, match="engine 'bare' has no option 'dept'; did you mean 'depth'"):
            check("bare", {"dept": 2}, EngineSpec(), Deployment())

    def test_one_that_cannot_be_loaded_says_where_it_comes_from(self) -> None:
        with pytest.raises(UnknownEngine, match="engine 'broken' of bare_engine:Missing cannot be loaded: module"):
            check("broken", {}, EngineSpec(), Deployment())

    @pytest.mark.parametrize(
        ("adapter", "kind", "missing"),
        [
            ("half", "HalfDialect", "ends_by_closing, exact_length, reader, refusal, request, takes_messages"),
            ("no_class", "HalfDialect", "Options, dialect_for"),
        ],
    )
    def test_one_that_lacks_a_part_is_refused_before_anything_starts(
        self, adapter: str, kind: str, missing: str
    ) -> None:
        with pytest.raises(BadAdapter, match=f"engine '{adapter}': {kind} has no {missing}; see docs/adapters.md"):
            check(adapter, {}, EngineSpec(), Deployment())

    def test_a_part_that_only_its_instances_lack_is_named_when_one_is_made(self) -> None:
        with pytest.raises(BadAdapter, match="engine 'idle': Idle has no launch"):
            engine("idle", Model("m"), {})
