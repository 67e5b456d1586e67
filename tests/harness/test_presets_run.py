"""Every preset through the whole harness against the reference engine, and the state of the engine's prefix cache."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import results
from harness.experiment import experiment_from
from harness.observer import PlainObserver
from harness.run import create_run, run_experiment
from results.records import Outcome, Phase, RequestRecord, Verdict
from results.run import Trial
from tests.harness.tiny_model import tiny_engine, tiny_model
from workloads.presets import built_in, preset_names

pytestmark = pytest.mark.model
SCALE, PER_S = 0.02, 20.0
TRIAL: dict[str, Any] = {"duration_s": 0.8, "settle_s": 0.0, "min_requests": 0, "warmup_requests": 1}
CONVERSATIONS = {"agentic-tools", "long-context-chat", "multi-turn"}
"""Their users think for longer than a short closed loop lasts."""
HEAD_TOKENS = 48
"""No longer is what SmolLM2's template puts before every chat, in whole blocks of 16."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), model_folder)


async def run(tmp_path: Path, tokenizer: Path, url: str, name: str, **changes: Any) -> results.Run:
    data: dict[str, Any] = {
        "name": name,
        "repeats": 1,
        "model": {"name": "tiny", "tokenizer": str(tokenizer)},
        "engines": [{"adapter": "reference", "url": url}],
        "workload": {"name": name, "options": {"scale": SCALE}},
        "loads": [{"concurrency": 4}],
        "trial": TRIAL | {"max_requests": 60},
        "client": {"calibrate": False},
        **changes,
    }
    experiment = experiment_from(data, name)
    folder = create_run(experiment, tmp_path / name)
    await run_experiment(experiment, folder, PlainObserver(Console(quiet=True), experiment))
    return results.load(folder.path)


def play(tiny: Path, tmp_path: Path, scene: Any, **settings: object) -> Any:
    async def with_engine() -> Any:
        async with tiny_engine(tiny, tmp_path / "engine.log", **settings) as url:
            return await scene(url)

    coroutine: Coroutine[Any, Any, Any] = with_engine()
    return asyncio.run(coroutine)


def measured(trial: Trial) -> list[RequestRecord]:
    return [request for request in trial.requests if request.phase is Phase.MEASURED]


def hits(trial: Trial) -> int:
    return sum(request.cached_tokens or 0 for request in measured(trial))


@pytest.mark.timeout(240)
def test_every_preset_runs_with_the_lengths_that_it_says(tiny: Path, tmp_path: Path) -> None:
    """In a closed loop, and as its own arrival process and think times have it, sped up."""

    async def scene(url: str) -> list[results.Run]:
        runs = []
        for name in preset_names():
            natural = built_in(name).arrival
            warp = 1.0 if natural.process == "at-once" else PER_S / natural.rate_per_s
            warp = 400.0 if name in CONVERSATIONS else warp
            loads = [{"concurrency": 4}, {"arrival": "workload", "time_warp": warp}]
            sessions = 12 if name in CONVERSATIONS else 100
            trial = TRIAL | {"max_requests": sessions}
            runs.append(await run(tmp_path, tiny, url, name, loads=loads, trial=trial))
        return runs

    for found in play(tiny, tmp_path, scene):
        closed, natural = found.finished
        name = found.manifest.name
        # A fast machine is through the plan before a second is over, and long thinkers send nothing in one.
        assert not [reason for reason in closed.record.reasons if not reason.startswith("too short")], name
        assert len(measured(closed)) >= (4 if name in CONVERSATIONS else 20), name
        for trial in (closed, natural):
            requests = measured(trial)
            assert {request.outcome for request in requests} == {Outcome.OK}, name
            assert [request.prompt_tokens for request in requests] == [r.wanted_input_tokens for r in requests], name
            assert [request.output_tokens for request in requests] == [r.wanted_output_tokens for r in requests], name
            assert not [warning for warning in trial.record.warnings if "length" in warning], name
            assert trial.record.traffic is not None
            assert trial.record.traffic.off_length == 0
        if name in {"multi-turn", "agentic-tools"}:
            assert any(request.turn > 0 for request in measured(natural)), name


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["chat", "multi-turn"])
def test_cold_trials_find_nothing_of_earlier_ones_in_the_cache(tiny: Path, tmp_path: Path, name: str) -> None:
    """Through an adapter that cannot reset the cache, and with two engines at one address: the words alone do it."""

    async def scene(url: str) -> results.Run:
        sides = [{"adapter": "openai", "label": label, "url": url} for label in "ab"]
        loads = [{"concurrency": 2}, {"concurrency": 3}]
        return await run(tmp_path, tiny, url, name, engines=sides, loads=loads, repeats=2)

    found = play(tiny, tmp_path, scene)
    assert len(found.finished) == 8
    for trial in found.finished:
        traffic, requests = trial.record.traffic, measured(trial)
        assert traffic is not None
        assert not traffic.cache_reset
        assert not [reason for reason in trial.record.reasons if "cache" in reason]
        first = min(requests, key=lambda request: request.sent_ns or 0)
        assert (first.cached_tokens or 0) <= HEAD_TOKENS, "what the template puts before every chat"
        if name == "chat":
            assert all((request.cached_tokens or 0) <= HEAD_TOKENS for request in requests)
        assert hits(trial) <= traffic.repeated_tokens + HEAD_TOKENS
    assert len({trial.record.traffic.sha256 for trial in found.finished if trial.record.traffic}) == 8
    assert len({trial.record.workload_sha256 for trial in found.finished}) == 2, "one shape for each load"


@pytest.mark.timeout(120)
def test_primed_and_warm_trials_hit_what_they_say(tiny: Path, tmp_path: Path) -> None:
    async def scene(url: str) -> list[results.Run]:
        runs = []
        for cache in ("cold", "primed", "warm"):
            trial = TRIAL | {"max_requests": 20, "cache": cache}
            options = {"workload": {"name": "multi-turn", "options": {"scale": 0.1}}, "trial": trial}
            runs.append(await run(tmp_path / cache, tiny, url, "multi-turn", **options))
        return runs

    cold, primed, warm = (found.finished[0] for found in play(tiny, tmp_path, scene))
    shared = 100 - 16  # a tenth of the preset's system prompt, in whole blocks
    first = [min(measured(trial), key=lambda request: request.sent_ns or 0) for trial in (cold, primed, warm)]
    assert (first[0].cached_tokens or 0) <= HEAD_TOKENS
    assert (first[1].cached_tokens or 0) >= shared
    assert (first[1].cached_tokens or 0) < (first[1].prompt_tokens or 0) - 32
    for request in measured(warm):
        assert (request.cached_tokens or 0) >= (request.prompt_tokens or 0) - 17
    assert cold.record.traffic is not None
    assert cold.record.traffic.cache_reset, "the reference engine has a call for it"
    for trial in (cold, primed, warm):
        assert not [text for text in (*trial.record.reasons, *trial.record.warnings) if "cache" in text]


@pytest.mark.timeout(120)
def test_a_trial_that_should_be_cold_and_is_not_is_invalid(tiny: Path, tmp_path: Path) -> None:
    """The same experiment twice at an engine that keeps its cache: the second has the words of the first."""

    async def scene(url: str) -> list[results.Run]:
        sides = [{"adapter": "openai", "url": url}]
        longer = {"name": "chat", "options": {"scale": 0.2}}
        return [await run(tmp_path / str(i), tiny, url, "chat", engines=sides, workload=longer) for i in range(2)]

    first, second = (found.finished[0].record for found in play(tiny, tmp_path, scene))
    assert not [reason for reason in first.reasons if "cache" in reason]
    assert second.verdict is Verdict.INVALID
    assert any(reason.startswith("cache not cold: ") for reason in second.reasons)


@pytest.mark.timeout(120)
def test_a_cache_that_is_switched_off_is_told(tiny: Path, tmp_path: Path) -> None:
    async def scene(url: str) -> results.Run:
        trial = TRIAL | {"max_requests": 20, "cache": "warm"}
        return await run(tmp_path, tiny, url, "chat", trial=trial)

    (trial,) = play(tiny, tmp_path, scene, enable_prefix_caching=False).finished
    assert any(warning.startswith("cache: warm as asked") for warning in trial.record.warnings)
