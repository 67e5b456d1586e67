"""Every preset through the whole harness, and what trials find in a prefix cache.

Twice with the reference engine, a process that counts and caches tokens by itself; the rest in virtual time.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
import pytest

from bakeoff import results
from bakeoff.harness.client.wire.orders import Ramped
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in
from bakeoff.harness.virtual.runs import QUIET
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding
from bakeoff.results.records import Outcome, Phase, RequestRecord, Verdict
from bakeoff.results.run.cells import Trial
from bakeoff.workloads import Seed, Tokenizer, workload
from bakeoff.workloads.presets import built_in, preset_names
from bakeoff.workloads.shapes import chosen_sessions
from tests.harness.tiny_model import tiny_engine, tiny_model
from tests.selection import sampled

SCALE, PER_S = 0.02, 20.0
TRIAL: dict[str, Any] = {"ramp_s": 0.1, "duration_s": 5.0, "warm_up_s": 0.0}
CONVERSATIONS = {"agent-coding", "agent-tools", "agentic-tools", "deep-research", "long-context-chat", "multi-turn"}
"""Their users think for longer than a short closed loop lasts."""
HEAD_TOKENS = 48
"""No longer is what SmolLM2's template puts before every chat, in whole blocks of 16."""
CACHE = {FindingCode.CACHE_NOT_COLD, FindingCode.CACHE_UNKNOWN, FindingCode.CACHE_UNUSED}
URL = "http://shared"
P, T = ParamSpec("P"), TypeVar("T")


def data_of(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "repeats": 1,
        "model": {"name": "tiny"},
        "engines": [{"adapter": "reference", "label": "a", "url": URL}],
        "workload": {"name": name, "options": {"scale": SCALE}},
        "loads": [{"concurrency": 4}],
        "trial": TRIAL,
        "client": {"calibrate": False},
        **changes,
    }


def sent(trial: Trial) -> list[RequestRecord]:
    """Requests under the load, ramp and tail included, in the order sent."""
    return sorted(trial.load, key=lambda request: request.sent_ns or 0)


def ends_early(request: RequestRecord) -> bool:
    """Whether a schema may end the answer before its planned length."""
    return request.session.startswith("structured-output")


def hits(trial: Trial) -> int:
    return sum(request.cached_tokens or 0 for request in sent(trial))


def codes(findings: list[Finding]) -> set[FindingCode]:
    return {finding.code for finding in findings}


def given_up(request: RequestRecord) -> bool:
    """Whether it was in flight when the load began again, because its sessions did not fit the engine's pace."""
    return request.phase is Phase.RAMP and request.outcome is Outcome.CANCELLED


def lengths_are_right(trial: Trial) -> None:
    requests = [request for request in sent(trial) if not given_up(request)]
    assert {request.outcome for request in requests} == {Outcome.OK}
    assert [request.prompt_tokens for request in requests] == [r.requested_input_tokens for r in requests]
    assert all(r.output_tokens == r.requested_output_tokens for r in requests if not ends_early(r))
    assert all((r.output_tokens or 0) <= (r.requested_output_tokens or 0) for r in requests)
    assert FindingCode.INPUT_LENGTH not in codes(trial.record.warnings)
    assert trial.record.traffic is not None
    assert trial.record.traffic.off_length == 0


# With a real engine.


def sessions_of_every_preset(file: Path, tokenizer: Tokenizer) -> int:
    """Write three sessions of each preset, 20 ms apart and without think times; returns their number."""
    lines: list[bytes] = []
    for name in preset_names():
        first_turns = dict.fromkeys(range(3), 3)
        for written in chosen_sessions(workload(name, {"scale": SCALE}), tokenizer, Seed.of("7"), first_turns):
            turns = tuple(msgspec.structs.replace(turn, think_s=0.0) for turn in written.turns)
            session = msgspec.structs.replace(written, turns=turns, start_s=len(lines) * 0.02)
            lines.append(msgspec.json.encode(session))
    file.write_bytes(b"\n".join(lines))
    return len(lines)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> dict[str, Trial]:
    """Trials of one reference engine: three states of its cache, and the sessions of every preset."""
    folder = tmp_path_factory.mktemp("real")
    tiny = tiny_model(folder / "tiny", model_folder)
    count = sessions_of_every_preset(folder / "sessions.jsonl", Tokenizer(tiny))
    workload = {"name": "rag", "options": {"scale": 0.2}}
    changes: dict[str, dict[str, Any]] = {
        cache: {"workload": workload, "trial": TRIAL | {"duration_s": 0.3, "cache": cache}}
        for cache in ("cold", "primed", "warm")
    }
    changes["sessions"] = {
        "workload": {"name": "sessions", "options": {"path": str(folder / "sessions.jsonl")}},
        "loads": [{"arrival": "workload"}],
        "trial": TRIAL | {"duration_s": count * 0.02},
    }

    async def scene() -> dict[str, Trial]:
        trials: dict[str, Trial] = {}
        async with tiny_engine(tiny, folder / "engine.log") as url:
            sides = [{"adapter": "reference", "url": url}]
            model = {"name": "tiny", "tokenizer": str(tiny)}
            for name, change in changes.items():
                experiment = experiment_from(data_of(name, engines=sides, model=model, **change), name)
                run = create_run(experiment, folder)
                await run_experiment(experiment, run, QUIET)
                (trials[name],) = results.load(run.path).finished
        return trials

    return asyncio.run(scene())


@pytest.mark.nightly
@pytest.mark.model
def test_sessions_of_every_preset_have_the_lengths_that_they_say(real: dict[str, Trial]) -> None:
    trial = real["sessions"]
    lengths_are_right(trial)
    assert len({request.session for request in sent(trial)}) == 3 * len(preset_names())


@pytest.mark.model
def test_primed_and_warm_trials_hit_what_they_declare(real: dict[str, Trial]) -> None:
    shared = 80 - 16  # a fifth of the preset's system prompt, in whole blocks
    primed = next(r for r in sent(real["primed"]) if r.phase is Phase.MEASURED)
    # The one that the engine computed first, which need not be the one that was sent first.
    assert min(request.cached_tokens or 0 for request in sent(real["cold"])) <= HEAD_TOKENS
    assert (primed.cached_tokens or 0) >= shared
    assert (primed.cached_tokens or 0) < (primed.prompt_tokens or 0) - 32
    for request in (request for request in sent(real["warm"]) if request.phase is Phase.MEASURED):
        assert (request.cached_tokens or 0) >= (request.prompt_tokens or 0) - 17
    traffic = real["cold"].record.traffic
    assert traffic is not None
    assert traffic.cache_reset, "the reference engine has a call for it"
    assert not [name for name in ("cold", "primed", "warm") if codes(real[name].record.findings) & CACHE]


# In virtual time.

CACHING = VirtualEngine(cache_block_tokens=16)


def virtual(tmp_path: Path, world: VirtualWorld, name: str, **changes: Any) -> results.Run:
    return run_in(world, experiment_from(data_of(name, **changes), name), tmp_path)


@pytest.mark.parametrize("name", sampled(preset_names(), ["agent-tools", "chat", "code-completion", "rag"]))
def test_every_preset_runs_in_a_closed_loop_and_as_its_own_arrivals_have_it(tmp_path: Path, name: str) -> None:
    """Its own arrivals are sped up, and so are think times where they are long.

    In a closed loop most sessions are in a long pause, so it takes many to send a few requests.
    """
    natural, talks = built_in(name).arrival, name in CONVERSATIONS
    warp = 400.0 if talks else 1.0 if natural.process == "at-once" else PER_S / natural.rate_per_s
    sessions, slots, scale = (12, 30, SCALE) if talks else (60, 4, SCALE)
    if built_in(name).sub_agents:
        sessions, slots, scale = 6, 6, SCALE / 5  # each sends several requests at once
    world = VirtualWorld({"a": VirtualEngine()})
    closed, open_loop = (
        virtual(
            tmp_path, world, name,
            workload={"name": name, "options": {"scale": scale}},
            loads=[load], trial=TRIAL | {"max_requests": sessions, **limits},
        ).finished[0]
        for load, limits in (
            ({"concurrency": slots}, {"duration_s": 60.0 if talks else 5.0}),
            ({"arrival": "workload", "time_warp": warp}, {}),
        )
    )  # fmt: skip
    for trial in (closed, open_loop):
        lengths_are_right(trial)
        assert any(request.turn > 0 for request in sent(trial)) == talks
    assert len(sent(closed)) >= (4 if talks else 50)
    assert len({request.session for request in sent(open_loop)}) == sessions


class SlowPlanning(VirtualWorld):
    """Where writing the prompts of a window takes two minutes."""

    async def in_thread(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if any(isinstance(argument, Ramped) for argument in args):
            await asyncio.sleep(120.0)
        return await super().in_thread(work, *args, **kwargs)


@pytest.mark.parametrize(("world", "cut"), [(VirtualWorld, set()), (SlowPlanning, {FindingCode.SESSIONS_CUT})])
def test_sessions_that_end_before_their_window_does_spoil_the_trial(
    tmp_path: Path, world: type[VirtualWorld], cut: set[FindingCode]
) -> None:
    run = virtual(tmp_path, world({"a": VirtualEngine()}), "multi-turn", loads=[{"concurrency": 8}])
    assert all(codes(trial.record.findings) & {FindingCode.SESSIONS_CUT} == cut for trial in run.finished)


@pytest.mark.parametrize("name", ["chat", "multi-turn"])
def test_cold_trials_find_nothing_of_earlier_ones_in_the_cache(tmp_path: Path, name: str) -> None:
    """Through an adapter that cannot empty it, and with two engines at one address: different words are enough."""
    sides = [{"adapter": "openai", "label": label, "url": URL} for label in "ab"]
    loads = [{"concurrency": 2}, {"concurrency": 3}]
    world = VirtualWorld({"a": CACHING, "b": CACHING})
    run = virtual(tmp_path, world, name, engines=sides, loads=loads, repeats=2)
    assert len(run.finished) == 8
    for trial in run.finished:
        traffic = trial.record.traffic
        assert traffic is not None
        assert not traffic.cache_reset
        assert not codes(trial.record.invalidating) & CACHE
        assert not next(request for request in sent(trial) if not request.turn).cached_tokens
        assert hits(trial) <= traffic.repeated_tokens
        assert (hits(trial) > 0) == (name == "multi-turn"), "a conversation repeats itself"
    assert len({trial.record.traffic.sha256 for trial in run.finished if trial.record.traffic}) == 8
    assert len({trial.record.workload_sha256 for trial in run.finished}) == 2, "one shape for each load"


def test_a_trial_that_should_be_cold_and_is_not_is_invalid(tmp_path: Path) -> None:
    """The same experiment twice at an engine that keeps its cache: the second run repeats the words of the first."""
    world, sides = VirtualWorld({"a": CACHING}), [{"adapter": "openai", "label": "a", "url": URL}]
    longer = {"name": "chat", "options": {"scale": 0.2}}
    runs = [virtual(tmp_path, world, "chat", engines=sides, workload=longer) for _ in range(2)]
    first, second = (run.finished[0].record for run in runs)
    assert not codes(first.invalidating) & CACHE
    assert second.verdict is Verdict.INVALID
    assert FindingCode.CACHE_NOT_COLD in codes(second.invalidating)


def test_a_cache_that_is_switched_off_is_a_warning(tmp_path: Path) -> None:
    world = VirtualWorld({"a": VirtualEngine()})
    (trial,) = virtual(tmp_path, world, "chat", trial=TRIAL | {"cache": "warm"}).finished
    assert codes(trial.record.warnings) & CACHE == {FindingCode.CACHE_UNKNOWN}


@pytest.mark.parametrize("cache", ["primed", "warm"])
def test_a_cache_that_was_filled_is_hit(tmp_path: Path, cache: str) -> None:
    world, talks = VirtualWorld({"a": CACHING}), {"name": "multi-turn", "options": {"scale": 0.1}}
    trial = TRIAL | {"duration_s": 60.0, "cache": cache}
    (finished,) = virtual(tmp_path, world, "multi-turn", workload=talks, trial=trial).finished
    assert not codes(finished.record.findings) & CACHE
    shared = 100 - 16  # a tenth of the preset's system prompt, in whole blocks
    of_window = [request for request in sent(finished) if request.phase is Phase.MEASURED]
    assert min(request.cached_tokens or 0 for request in of_window) >= shared
    missed = [(request.prompt_tokens or 0) - (request.cached_tokens or 0) for request in of_window]
    assert (max(missed) < 16) == (cache == "warm")
