"""After an engine has been stopped: the answers of its trials beside the reference, one ``quality.json`` each."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from engines import Engine, Model
from harness.experiment import Experiment
from harness.quality.answers import Candidate, prepared
from harness.quality.scorer import Line, Score, Scores, not_installed, scored
from harness.traffic import Traffic, TrafficPlanner
from results.quality import Difference, QualityRecord, QualitySample, TokenMatch, pooled
from results.records import Outcome, Phase, RequestRecord, TrialPlan
from results.store import RunFolder, TrialFolder
from workloads import Tokenizer, Turn

_TRIES = 4
"""Times as many answers are looked at as wanted: of an engine that sends no token ids, some cannot be compared."""
_STRETCHES = 4
"""A trial of no more than 15 requests has so many stretches."""


class _Trial(msgspec.Struct, frozen=True):
    """One trial, ready to be scored; ``why`` where there is nothing to score."""

    folder: TrialFolder
    samples: list[QualitySample] = []
    lines: list[Line] = []
    why: str | None = None


async def check_quality(
    plans: Sequence[TrialPlan],
    run: RunFolder,
    engine: Engine,
    *,
    experiment: Experiment,
    model: Model,
    tokenizer: Tokenizer,
    planner: TrafficPlanner,
) -> None:
    """Compare answers of finished trials with the reference, and store how they compare; what is stored stays.

    Call it when the engine of these trials has been stopped, and before the planner goes on to another repeat. Nothing
    that goes wrong with the reference fails the run: the reason is stored.

    Args:
        plans: the trials, all of one repeat and one engine; those that have not finished are left out.
        run: where they are.
        engine: for its dialect.
        experiment: says how many answers, and the seed of the choice.
        model: whose weights the reference computes with.
        tokenizer: the model's.
        planner: of their traffic.
    """
    folders = [(plan, run.trial(plan.id)) for plan in plans]
    wanted = [(plan, folder) for plan, folder in folders if folder.read_record() and not folder.read_quality()]
    if not experiment.quality.samples or not wanted:
        return
    why = not_installed() if model.path else "the model's files are not here; set path in [model]"
    looking = _Looking(experiment, engine, tokenizer, planner)
    trials = [
        _Trial(folder, why=why) if why else await asyncio.to_thread(looking.at, plan, folder) for plan, folder in wanted
    ]
    lines = [line for trial in trials for line in trial.lines]
    scores = await scored(str(model.path), lines, experiment.quality.limit_s) if lines else Scores({})
    for trial in trials:
        trial.folder.write_quality(_record(trial, scores, tokenizer))


def ranked(seed: str, requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests in the order in which they are chosen: at random, by seed, session and turn alone."""
    return sorted(requests, key=lambda request: _draw(f"{seed}/{request.session}/{request.turn}"))


def asks_logprobs(seed: str, samples: int) -> Callable[[int], bool]:
    """Whether the request at a position of a plan asks for log-probabilities.

    A closed loop's plan is longer than what it sends, so nobody knows beforehand how far it will get. The plan is cut
    into stretches of 1, 2, 4, 8… requests, and as many are asked in each as give ``samples`` over the first four.
    """
    each = -(-samples // _STRETCHES)

    def asks(position: int) -> bool:
        size = 1 << (position + 1).bit_length() - 1
        offset = position + 1 - size
        return each > 0 and any(_draw(f"{seed}/{size}/{number}") % size == offset for number in range(each))

    return asks


def _draw(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class _Looking:
    """Finds what is to be compared in a trial's log."""

    def __init__(self, experiment: Experiment, engine: Engine, tokenizer: Tokenizer, planner: TrafficPlanner) -> None:
        self._experiment = experiment
        self._config = experiment.quality
        self._engine = engine
        self._tokenizer = tokenizer
        self._planner = planner

    def at(self, plan: TrialPlan, folder: TrialFolder) -> _Trial:
        """The answers of one trial; as many as are wanted, where so many can be compared."""
        record = folder.read_record()
        traffic = self._planner.traffic(plan.load, plan.repeat, plan.engine)
        if record is None or record.traffic is None or record.traffic.sha256 != traffic.sha256:
            return _Trial(folder, why="the trial was sent other words than this run plans")
        found = _Trial(folder)
        for candidate in self._candidates(plan, folder, traffic):
            sample, line = prepared(candidate, self._engine.dialect, self._tokenizer)
            found.samples.append(sample)
            if line:
                found.lines.append(msgspec.structs.replace(line, id=_name(found, sample)))
            if len(found.lines) == self._config.samples:
                break
        return found if found.samples else _Trial(folder, why="no answer ended well")

    def _candidates(self, plan: TrialPlan, folder: TrialFolder, traffic: Traffic) -> Iterator[Candidate]:
        """Answers that ended well, in the order in which they are chosen."""
        good = [
            r for r in folder.read_requests()
            if r.phase is Phase.MEASURED and r.outcome is Outcome.OK and not r.cycle
        ]  # fmt: skip
        if self._config.logprobs:
            asks = asks_logprobs(self._experiment.traffic_seed(plan.load), self._config.samples)
            good = [request for request in good if asks(request.index)]
        seed = f"{self._experiment.traffic_seed(plan.load)}/{plan.repeat}"
        chosen = ranked(seed, good)[: _TRIES * self._config.samples]
        places = {request.index for request in chosen}
        turns = _turns(traffic, places)
        streams = {stream.index: stream for stream in folder.read_streams() if stream.index in places}
        return (Candidate(request, turns[request.index], streams[request.index]) for request in chosen)


def _turns(traffic: Traffic, places: set[int]) -> dict[int, Turn]:
    """What was asked by the requests at some places of the window's plan."""
    end = max(places, default=-1) + 1
    traffic.window.write(lambda plan: plan.requests >= end)
    everything = (turn for planned in traffic.window for turn in planned.session.turns)
    return {place: turn for place, turn in zip(range(end), everything, strict=False) if place in places}


def _name(trial: _Trial, sample: QualitySample) -> str:
    """What the scorer calls it: one process scores several trials."""
    return f"{trial.folder.path.name}/{sample.index}"


def _record(trial: _Trial, scores: Scores, tokenizer: Tokenizer) -> QualityRecord:
    if trial.why:
        return QualityRecord(why=trial.why)
    asked = {line.id for line in trial.lines}
    samples = [
        _scored(sample, scores.by_id.get(_name(trial, sample)), scores.failure, tokenizer)
        if _name(trial, sample) in asked
        else sample
        for sample in trial.samples
    ]
    warnings = [scores.failure] if scores.failure and asked else []
    return QualityRecord(samples=samples, summary=pooled(samples), warnings=warnings)


def _scored(sample: QualitySample, score: Score | None, failure: str | None, tokenizer: Tokenizer) -> QualitySample:
    if score is None or score.error:
        why = score.error if score else failure
        return msgspec.structs.replace(sample, why=why or "the reference left it out")
    values = {name: getattr(score, name) for name in TokenMatch.__struct_fields__}
    return msgspec.structs.replace(
        sample, **values | {name: _told(values[name], tokenizer) for name in ("first", "worst")}
    )


def _told(difference: Difference | None, tokenizer: Tokenizer) -> Difference | None:
    """With the texts of its tokens."""
    if difference is None:
        return None
    return msgspec.structs.replace(
        difference,
        token_text=tokenizer.decode([difference.token]),
        expected_text=tokenizer.decode([difference.expected]),
    )
