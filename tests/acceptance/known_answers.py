"""Scenarios with known results, as data: a load, a virtual engine, and the expected findings."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.conduct.run import why_invalid
from bakeoff.harness.truth import Schedule
from bakeoff.harness.virtual import (
    Death,
    Ending,
    Exponential,
    Fault,
    Fixed,
    PerToken,
    VirtualEngine,
    VirtualWorld,
    Whole,
)
from bakeoff.harness.virtual.draws import Service
from bakeoff.harness.virtual.runs import run_in, virtual_experiment
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.records import Outcome as RequestOutcome
from bakeoff.results.records import Slo, Verdict
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run
from tests.acceptance.oracle import UNSEEN, Truth, expected

SLO = {"ttft_s": 0.5, "e2e_s": 6.0}
S = 1e9


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One trial.

    Attributes:
        name: what is special about it.
        load: as in an experiment file.
        engine: virtual engine that serves the load.
        trial: limits that differ from the defaults.
        turns: of each session; 0 for the random workload, whose sessions have one turn.
        think_s: pause before each later turn.
        tokens: of each answer.
        codes: findings that must make the trial INVALID; if empty, it must be VALID.
        seed: of traffic and engine.
    """

    name: str
    load: dict[str, Any]
    engine: VirtualEngine
    trial: dict[str, Any] = {}
    turns: int = 0
    think_s: float = 0.0
    tokens: int = 5
    codes: frozenset[FindingCode] = frozenset()
    seed: int = 1


class Outcome(msgspec.Struct, frozen=True):
    """The result of a scenario.

    Attributes:
        valid: whether the trial was VALID.
        codes: findings that made it INVALID.
        exit_code: of ``bakeoff run``.
        worst: largest relative error of any metric, and that metric.
        wrong: metrics with a relative error above 1e-6, and metrics that are missing or present against expectation.
    """

    valid: bool
    codes: frozenset[FindingCode]
    exit_code: int
    worst: tuple[float, str]
    wrong: list[str]


def run_and_check(scenario: Scenario) -> Outcome:
    """Run a scenario in virtual time and compare every metric with the oracle's value."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-known-", dir="/dev/shm") as scratch:
        run, world = run_scenario(scenario, Path(scratch))
        (trial,) = run.finished
        truth = truths(trial, world)
        codes = frozenset(finding.code for finding in trial.record.invalidating)
        wrong: list[str] = []
        worst = (0.0, "")
        if trial.window.length_s > 0:
            window = (trial.window.start_ns / S, trial.window.end_ns / S)
            saturated = FindingCode.SATURATED in codes
            warned = {finding.code for finding in trial.record.warnings}
            backlog_grew = saturated or bool(warned & {FindingCode.BACKLOG_GREW, FindingCode.CAPACITY_UNCLEAR})
            values = expected(truth, *window, Slo(**SLO), saturated=saturated, backlog_grew=backlog_grew)
            wrong += [f"{name}: not known to the oracle" for name in CATALOGUE if name not in {*values, *UNSEEN}]
            for name, value in values.items():
                measured = trial.metrics[name].value
                if (measured is None) != (value is None):
                    wrong.append(f"{name}: {measured} instead of {value}")
                elif measured is not None and value is not None:
                    error = abs(measured - value) / max(abs(value), 1e-9)
                    worst = max(worst, (error, name))
                    if error > 1e-6:
                        wrong.append(f"{name}: {measured} instead of {value}")
        exit_code = 3 if why_invalid(run) else 0
        return Outcome(trial.record.verdict is Verdict.VALID, codes, exit_code, worst, wrong)


def run_scenario(scenario: Scenario, scratch: Path) -> tuple[Run, VirtualWorld]:
    """Run a scenario; the returned world holds the servers' records."""
    experiment = virtual_experiment(
        ["engine"], [scenario.load], repeats=1, seed=scenario.seed, slo=SLO,
        workload=_workload(scenario, scratch), trial={"warm_up_s": 0.0, **scenario.trial},
    )  # fmt: skip
    world = VirtualWorld({"engine": scenario.engine}, seed=scenario.seed)
    return run_in(world, experiment, scratch / "runs"), world


def truths(trial: Trial, world: VirtualWorld) -> list[Truth]:
    """The requests of a trial as the server recorded them, each with the client's planned time.

    The two records are matched by the order of sending; requests that never reached the server have no tokens.
    """
    (site,) = world.sites.values()
    engine = site.engine
    served = iter(site.served)
    requests: list[Truth] = []
    for request in sorted(trial.requests, key=lambda r: (r.sent_ns or r.planned_ns, r.planned_ns)):
        planned, given_up = request.planned_ns / S, request.outcome is RequestOutcome.CANCELLED
        if request.sent_ns is None:
            requests.append(
                Truth(planned, None, request.ended_ns / S, (), ok=False, given_up=given_up, prompt_tokens=0)
            )
            continue
        record = next(served)
        assert record.arrived_ns == request.sent_ns, "the order of sends is the order of arrivals"
        tokens_before = [0, *itertools.accumulate(record.chunk_tokens)]
        letters = Schedule(kinds=engine.kinds).kinds_of_tokens()
        kinds = "".join(letters[i] if i < len(letters) else "t" for i in tokens_before[:-1])
        chunks = tuple((t_ns / S, tokens) for t_ns, tokens in zip(record.chunk_ns, record.chunk_tokens, strict=True))
        requests.append(
            Truth(
                planned, record.arrived_ns / S, (record.ended_ns or 0) / S, chunks,
                ok=record.ending is Ending.COMPLETE and bool(chunks), given_up=given_up,
                prompt_tokens=record.prompt_tokens, cached_tokens=record.cached_tokens,
                kinds=kinds, reasoning=letters[: record.tokens].count("r") + engine.hidden_tokens,
                hidden=engine.hidden_tokens,
            )
        )  # fmt: skip
    return requests


def _workload(scenario: Scenario, scratch: Path) -> dict[str, Any]:
    if not scenario.turns:
        return {"name": "random", "options": {"input_tokens": 8, "output_tokens": scenario.tokens}}
    path = scratch / "sessions.jsonl"
    texts = [" ".join(["word"] * (4 + turn)) for turn in range(scenario.turns)]
    is_chat = scenario.engine.kinds or scenario.engine.hidden_tokens
    turns = [
        {"input_tokens": 4 + turn, "output_tokens": scenario.tokens, "think_s": scenario.think_s if turn else 0.0}
        | ({"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text})
        for turn, text in enumerate(texts)
    ]
    lines = (msgspec.json.encode({"id": f"s{i}", "turns": turns}) for i in range(400))
    path.write_bytes(b"\n".join(lines) + b"\n")
    return {"name": "sessions", "options": {"path": str(path)}}


def scenarios() -> Iterator[Scenario]:
    yield from _open_loops()
    yield from _closed_loops()
    yield from _failures()
    yield from _lengths()
    yield from _reasoning()
    yield from _endings()


def _answers(e2e_s: float, tokens: int = 5) -> Service:
    """Answers that take ``e2e_s``, a fifth of it until the first token."""
    return PerToken(Fixed(e2e_s / 5), Fixed(e2e_s * 4 / 5 / (tokens - 1)))


def _open_loops() -> Iterator[Scenario]:
    rates = (0.25, 1.0, 2.0, 10.0, 100.0, 500.0)
    for rate, e2e_s, arrival in itertools.product(rates, (0.2, 1.0, 5.0, 15.0, 40.0), ("constant", "poisson", "gamma")):
        if rate * max(e2e_s, 5.0) > 3000:
            continue
        yield Scenario(
            name=f"{arrival} {rate:g}/s, E2E {e2e_s:g} s, unlimited engine",
            load={"rate_per_s": rate, "arrival": arrival}, engine=VirtualEngine(service=_answers(e2e_s)),
            trial={"duration_s": 30.0 if rate <= 10 else 5.0},
        )  # fmt: skip
    for slots, draw, share in itertools.product((1, 4, 16, 64), (Fixed, Exponential), (0.5, 0.8)):
        yield Scenario(
            name=f"{slots} slots, {draw.__name__} service at {share:.0%}", seed=3,
            load={"rate_per_s": slots * share / 0.4, "arrival": "poisson"},
            engine=VirtualEngine(service=Whole(draw(0.4)), slots=slots), trial={"duration_s": 40.0},
        )  # fmt: skip
    for slots, draw in itertools.product((1, 4, 16, 64), (Fixed, Exponential)):
        yield Scenario(
            name=f"{slots} slots, {draw.__name__} service at 150 %", codes=frozenset({FindingCode.SATURATED}),
            load={"rate_per_s": slots * 1.5 / 0.4, "arrival": "poisson"},
            engine=VirtualEngine(service=Whole(draw(0.4)), slots=slots), trial={"duration_s": max(40.0, 240 / slots)},
        )  # fmt: skip
    for cap in (2, 8, 32):
        yield Scenario(
            name=f"a cap of {cap} in flight", load={"rate_per_s": 4.0, "arrival": "poisson", "max_in_flight": cap},
            engine=VirtualEngine(service=_answers(cap * 0.15)),
        )  # fmt: skip


def _closed_loops() -> Iterator[Scenario]:
    levels, e2es_s = (1, 2, 4, 8, 16, 32, 64), (0.2, 1.0, 5.0, 22.0, 40.0)
    for slots, e2e_s, draw in itertools.product(levels, e2es_s, (Fixed, Exponential)):
        yield Scenario(
            name=f"c={slots}, E2E {e2e_s:g} s {draw.__name__}", load={"concurrency": slots}, seed=5,
            engine=VirtualEngine(service=Whole(draw(e2e_s))),
            trial={"duration_s": 10.0 if e2e_s < 1 else 30.0, "timeout_s": 600.0},
        )  # fmt: skip
    for slots, turns, think_s in itertools.product((1, 8, 32), (2, 5), (0.0, 1.0, 3.0)):
        yield Scenario(
            name=f"c={slots}, {turns} turns, {think_s:g} s between them", load={"concurrency": slots}, turns=turns,
            think_s=think_s, engine=VirtualEngine(service=_answers(0.5)), trial={"duration_s": 30.0},
        )  # fmt: skip
    for slots, block in itertools.product((1, 8), (1, 4)):
        yield Scenario(
            name=f"c={slots}, 5 turns, a prefix cache of blocks of {block}", load={"concurrency": slots}, turns=5,
            engine=VirtualEngine(service=_answers(0.5), cache_block_tokens=block), trial={"duration_s": 30.0},
        )  # fmt: skip
    for rate, turns in itertools.product((1.0, 5.0), (2, 4)):
        yield Scenario(
            name=f"poisson {rate:g}/s, {turns} turns", load={"rate_per_s": rate, "arrival": "poisson"}, turns=turns,
            think_s=0.5, engine=VirtualEngine(service=_answers(0.5)),
        )  # fmt: skip


def _failures() -> Iterator[Scenario]:
    own_codes = {Fault.HTTP_401: FindingCode.NOT_AUTHORISED, Fault.HTTP_302: FindingCode.REDIRECTED}
    for fault, share, closed in itertools.product(Fault, (0.005, 0.05, 0.2), (True, False)):
        void = share > 0.01
        yield Scenario(
            name=f"{share:.1%} {fault.value}, {'closed' if closed else 'open'}", seed=7,
            load={"concurrency": 16} if closed else {"rate_per_s": 25.0, "arrival": "poisson"},
            engine=VirtualEngine(service=_answers(0.4), faults={fault: share}),
            trial={"duration_s": 30.0, "timeout_s": 5.0, "max_failure_share": 0.01},
            codes=frozenset({own_codes.get(fault, FindingCode.FAILED_REQUESTS)}) if void else frozenset(),
        )  # fmt: skip
    for fault, share in itertools.product(Fault, (0.02, 0.1)):
        yield Scenario(
            name=f"{share:.0%} {fault.value}, tolerated", seed=9, load={"rate_per_s": 25.0, "arrival": "poisson"},
            engine=VirtualEngine(service=_answers(0.4), faults={fault: share}),
            trial={"duration_s": 30.0, "timeout_s": 5.0, "max_failure_share": 0.5},
        )  # fmt: skip


def _lengths() -> Iterator[Scenario]:
    for share, closed in itertools.product((0.1, 0.5, 1.0), (True, False)):
        yield Scenario(
            name=f"{share:.0%} of the answers short", tokens=20,
            load={"concurrency": 8} if closed else {"rate_per_s": 10.0, "arrival": "poisson"},
            engine=VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.02)), short_share=share, short_length=0.5),
        )  # fmt: skip
    for tokens, group in itertools.product((1, 2, 20), (1, 4)):
        yield Scenario(
            name=f"{tokens} tokens, {group} a chunk", tokens=tokens, load={"concurrency": 8},
            engine=VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.02)), tokens_per_chunk=group),
        )  # fmt: skip


def _reasoning() -> Iterator[Scenario]:
    service = PerToken(Fixed(0.1), Fixed(0.02))
    for kinds, closed, group in itertools.product(("20r", "25r", "8r3c9r", "1t5r"), (True, False), (1, 4)):
        yield Scenario(
            name=f"25 tokens as {kinds}, {group} a chunk, {'closed' if closed else 'open'}", tokens=25, turns=1,
            load={"concurrency": 8} if closed else {"rate_per_s": 10.0, "arrival": "poisson"},
            engine=VirtualEngine(service=service, kinds=kinds, tokens_per_chunk=group),
        )  # fmt: skip
    for hidden, kinds in ((480, ""), (3, "")):
        yield Scenario(
            name=f"{hidden} hidden tokens of reasoning", tokens=20, turns=1, load={"concurrency": 8},
            engine=VirtualEngine(service=service, kinds=kinds, hidden_tokens=hidden),
        )  # fmt: skip


def _endings() -> Iterator[Scenario]:
    for sessions, closed in itertools.product((3, 40, 400), (True, False)):
        enough = not closed or sessions == 400
        yield Scenario(
            name=f"a plan of {sessions} sessions, {'closed' if closed else 'open'}",
            load={"concurrency": 2} if closed else {"rate_per_s": 10.0, "arrival": "poisson"},
            engine=VirtualEngine(service=_answers(0.2)),
            trial={"max_requests": sessions},
            codes=frozenset() if enough or sessions == 40 else frozenset({FindingCode.WINDOW_TOO_SHORT}),
        )  # fmt: skip
    for at_s in (0.5, 3.0, 12.0, 34.0):
        yield Scenario(
            name=f"the engine dies after {at_s:g} s", load={"concurrency": 4},
            codes=frozenset({FindingCode.ENGINE_DIED}),
            engine=VirtualEngine(service=_answers(0.4), deaths=(Death(at_s=at_s),)),
        )  # fmt: skip
    for dial_s, rate in itertools.product((0.005, 0.06, 0.2), (2.0, 20.0, 100.0)):
        yield Scenario(
            name=f"dialling takes {dial_s * 1e3:g} ms at {rate:g}/s", load={"rate_per_s": rate, "arrival": "poisson"},
            engine=VirtualEngine(service=_answers(0.4), dial_s=dial_s), trial={"duration_s": 15.0},
        )  # fmt: skip
