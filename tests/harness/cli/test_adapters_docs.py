"""docs/adapters.md matches the code: its example is installed, listed, started, measured and stopped."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bakeoff import results
from bakeoff.engines import Deployment, registry
from bakeoff.engines.errors import BadOption
from bakeoff.engines.identity import Identity
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.client import decode_stream
from bakeoff.results.findings import is_against_engine
from bakeoff.results.records import EngineDescription, Outcome, RunStatus, TokenSource
from bakeoff.workloads import Turn
from tests.engines.fakes.quill import VERSION
from tests.engines.quill import examples, install, model
from tests.harness.fake_runs import measured_run
from tests.harness.samples import event, stream


@pytest.fixture
def quill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's example and the imaginary engine's server, installed as packages would be."""
    programs = install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    registry._others.cache_clear()
    yield
    registry._others.cache_clear()


def run(tmp_path: Path, **side: Any) -> results.Run:
    smol = {"name": "smol", "path": str(model(tmp_path / "model"))}
    return asyncio.run(measured_run(tmp_path, {"adapter": "quill", **side}, model=smol))


def test_the_examples_are_short() -> None:
    assert all(len(code.splitlines()) <= 45 for code in examples())


@pytest.mark.usefixtures("quill")
def test_the_example_is_one_adapter_among_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(make_app(), ["engines", "list"]) == 0
    assert "quill" in capsys.readouterr().out
    with pytest.raises(BadOption, match="engine 'quill' has no option 'inc'; did you mean 'ink'"):
        registry.engine("quill", registry.Model("m"), {"inc": "blue"})


@pytest.mark.usefixtures("quill")
def test_the_example_is_started_measured_and_described(tmp_path: Path) -> None:
    result = run(tmp_path, spec={"max_num_seqs": 32}, options={"ink": "blue"})
    assert result.status is RunStatus.COMPLETE
    (trial,) = result.finished
    assert not is_against_engine(trial.record.findings), trial.record.findings
    description = trial.record.engine_description
    assert isinstance(description, EngineDescription)
    assert (description.adapter, description.version) == ("quill", VERSION)
    assert {name: description.details[name] for name in ("ink", "slots")} == {"ink": "blue", "slots": 32}
    assert description.argv[-4:] == ["--ink", "blue", "--slots", "32"]
    assert {(request.output_tokens, request.token_source) for request in trial.requests if request.index >= 0} == {
        (5, TokenSource.IDS)
    }


@pytest.mark.usefixtures("quill")
def test_what_the_example_cannot_do_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="engine 'quill' cannot be told seed: it has no such setting"):
        run(tmp_path, spec={"seed": 1})


@pytest.mark.usefixtures("quill")
def test_an_api_of_its_own_is_spoken_and_recognised() -> None:
    here = Deployment(url="http://127.0.0.1:9000")
    registry.check("ember", {}, registry.EngineSpec(), here)
    dialect = registry.dialect("ember", {}, here)
    request = dialect.request(Turn(input_tokens=2, output_tokens=5, prompt="Hello you"), "smol")
    assert (request.path, request.body) == ("/write", b'{"text":"Hello you","tokens":5,"stream":true}')
    pieces = [(10, event('{"piece": "I", "ids": [1, 2]}')), (20, event('{"piece": "am", "ids": [3]}'))]
    end = event('{"end": "length", "read": 2, "written": 3}')
    record = decode_stream(stream([*pieces, (21, end)]), dialect, None)
    assert (record.outcome, record.chunk_tokens, record.token_source) == (Outcome.OK, [2, 1], TokenSource.IDS)
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (2, 3, "length")
    problem = decode_stream(stream([*pieces, (21, event('{"problem": "full"}'))]), dialect, None)
    assert (problem.outcome, problem.error) == (Outcome.STREAM_ERROR, "full")
    assert dialect.refusal(503, b"full") == "HTTP 503: full"
    kind = registry.adapter_class("ember")
    assert kind.identify({"/about": {"engine": "ember", "model": "smol"}}) == Identity("ember", ("smol",))
    assert kind.identify({"/about": {"engine": "quill"}}) is kind.identify({}) is None
