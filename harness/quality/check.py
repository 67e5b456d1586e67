"""Compares answers of finished trials with the reference, and writes one ``quality.json`` per trial."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bakeoff.engines import Engine, Model
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.quality.answers import Candidate, prepared
from bakeoff.harness.quality.scorer import Line, Score, Scores, not_installed, scored
from bakeoff.harness.traffic.planner import Traffic, TrafficPlanner
from bakeoff.results.log.store import RunFolder, TrialFolder
from bakeoff.results.metrics.quality import Difference, QualityRecord, QualitySample, TokenMatch, pooled
from bakeoff.results.records import Outcome, Phase, RequestRecord, TrialRecord
from bakeoff.workloads import Tokenizer, Turn

_TRIES = 4
"""Candidates per wanted sample: without token ids from the engine, some answers cannot be compared."""
_STRETCHES = 4
"""Stretches in a trial of 15 requests; see :func:`asks_logprobs`."""


class _Trial(msgspec.Struct, frozen=True):
    """One trial, ready to be scored; ``why`` states why there is nothing to score."""

    folder: TrialFolder
    samples: list[QualitySample] = []
    lines: list[Line] = []
    why: str | None = None


async def check_quality(
    records: Sequence[TrialRecord],
    run: RunFolder,
    engine: Engine,
    *,
    experiment: Experiment,
    model: Model,
    tokenizer: Tokenizer,
    planner: TrafficPlanner,
) -> None:
    """Compare answers of finished trials with the reference, and store the result; existing results are kept.

    Call it after the engine of these trials has been stopped, and before the planner goes on to another repeat. A
    failure of the reference does not fail the run: its reason is stored.

    Args:
        records: the trials, all of one repeat and one engine.
        run: their run.
        engine: for its dialect.
        experiment: number of samples, and seed of their choice.
        model: weights for the reference.
        tokenizer: the model's.
        planner: of their traffic.
    """
    folders = [(record, run.trial_of(record)) for record in records]
    pending = [(record, folder) for record, folder in folders if not folder.read_quality()]
    if not experiment.quality.samples or not pending:
        return
    why = not_installed() if model.path else "the run names no files of the model; set path in [model]"
    if experiment.request_of(experiment.engine(records[0].engine)).changes_answers:
        why = "the requests asked for more than greedy decoding"
    elif experiment.classes and not compared_classes(experiment):
        why = "no class asks the model itself for plain greedy answers"
    sampler = _AnswerSampler(experiment, engine, tokenizer, planner)
    trials = [
        _Trial(folder, why=why) if why else await asyncio.to_thread(sampler.sample, record, folder)
        for record, folder in pending
    ]
    lines = [line for trial in trials for line in trial.lines]
    scores = await scored(str(model.path), lines, experiment.quality.limit_s) if lines else Scores({})
    for trial in trials:
        trial.folder.write_quality(_record(trial, scores, tokenizer))


def ranked(seed: str, requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests in random order, which depends only on seed, session and turn."""
    return sorted(requests, key=lambda request: _draw(f"{seed}/{request.session}/{request.turn}"))


def asks_logprobs(seed: str, samples: int) -> Callable[[int], bool]:
    """Whether the request at a position of a plan asks for log-probabilities.

    How far a closed loop gets in its plan is not known beforehand. So the plan is divided into stretches of 1, 2, 4,
    8… requests, with an equal number of such requests in each: ``samples`` over the first four stretches.
    """
    per_stretch = -(-samples // _STRETCHES)

    def asks(position: int) -> bool:
        size = 1 << (position + 1).bit_length() - 1
        offset = position + 1 - size
        return per_stretch > 0 and any(
            _draw(f"{seed}/{size}/{number}") % size == offset for number in range(per_stretch)
        )

    return asks


def _draw(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def compared_classes(experiment: Experiment) -> set[str]:
    """The classes of the traffic whose answers are those of the model itself, by plain greedy decoding."""
    return {each.name for each in experiment.classes if not each.model and not each.request.changes_answers}


class _AnswerSampler:
    """Samples answers from the logs of trials."""

    def __init__(self, experiment: Experiment, engine: Engine, tokenizer: Tokenizer, planner: TrafficPlanner) -> None:
        self._experiment = experiment
        self._config = experiment.quality
        self._engine = engine
        self._tokenizer = tokenizer
        self._planner = planner

    def sample(self, record: TrialRecord, folder: TrialFolder) -> _Trial:
        """Sample answers of one trial until the configured number can be compared."""
        traffic = self._planner.traffic(record.load, record.repeat, record.engine, record.attempt)
        if record.traffic is None or record.traffic.sha256 != traffic.sha256:
            return _Trial(folder, why="the trial was sent other prompts than this run plans")
        trial = _Trial(folder)
        for candidate in self._candidates(record, folder, traffic):
            sample, line = prepared(candidate, self._engine.dialect, self._tokenizer)
            trial.samples.append(sample)
            if line:
                trial.lines.append(msgspec.structs.replace(line, id=_name(trial, sample)))
            if len(trial.lines) == self._config.samples:
                break
        return trial if trial.samples else _Trial(folder, why="no answer completed successfully")

    def _candidates(self, record: TrialRecord, folder: TrialFolder, traffic: Traffic) -> Iterator[Candidate]:
        """Successful answers in random order."""
        successful = [
            r for r in folder.read_requests()
            if r.phase is Phase.MEASURED and r.outcome is Outcome.OK and not r.cycle
        ]  # fmt: skip
        if self._experiment.workload.history.is_live:
            # Later calls hold the engine's own answers, so that the plan has neither their prompts nor their lengths.
            successful = [request for request in successful if request.requested_input_tokens is not None]
        if self._experiment.classes:
            compared = compared_classes(self._experiment)
            successful = [request for request in successful if request.traffic_class in compared]
        if self._config.logprobs:
            asks = asks_logprobs(self._experiment.traffic_seed(record.load), self._config.samples)
            successful = [request for request in successful if asks(request.index)]
        seed = f"{self._experiment.traffic_seed(record.load)}/{record.repeat}"
        chosen = ranked(seed, successful)[: _TRIES * self._config.samples]
        indices = {request.index for request in chosen}
        turns = _turns(traffic, indices)
        streams = {stream.index: stream for stream in folder.read_streams() if stream.index in indices}
        return (Candidate(request, turns[request.index], streams[request.index]) for request in chosen)


def _turns(traffic: Traffic, indices: set[int]) -> dict[int, Turn]:
    """The turns of requests by their index in the window's plan."""
    end = max(indices, default=-1) + 1
    traffic.window.write(lambda plan: plan.requests >= end)
    planned_turns = (turn for planned in traffic.window for turn in planned.session.turns)
    return {index: turn for index, turn in zip(range(end), planned_turns, strict=False) if index in indices}


def _name(trial: _Trial, sample: QualitySample) -> str:
    """Id of a sample for the scorer, which scores several trials in one process."""
    return f"{trial.folder.path.name}/{sample.index}"


def _record(trial: _Trial, scores: Scores, tokenizer: Tokenizer) -> QualityRecord:
    if trial.why:
        return QualityRecord(why=trial.why)
    scorable = {line.id for line in trial.lines}
    samples = [
        _scored(sample, scores.by_id.get(_name(trial, sample)), scores.failure, tokenizer)
        if _name(trial, sample) in scorable
        else sample
        for sample in trial.samples
    ]
    warnings = [scores.failure] if scores.failure and scorable else []
    return QualityRecord(samples=samples, summary=pooled(samples), warnings=warnings)


def _scored(sample: QualitySample, score: Score | None, failure: str | None, tokenizer: Tokenizer) -> QualitySample:
    if score is None or score.error:
        why = score.error if score else failure
        return msgspec.structs.replace(sample, why=why or "the reference did not score it")
    values = {name: getattr(score, name) for name in TokenMatch.__struct_fields__}
    return msgspec.structs.replace(
        sample, **values | {name: _with_text(values[name], tokenizer) for name in ("first", "worst")}
    )


def _with_text(difference: Difference | None, tokenizer: Tokenizer) -> Difference | None:
    """The difference with the texts of its tokens."""
    if difference is None:
        return None
    return msgspec.structs.replace(
        difference,
        token_text=tokenizer.decode([difference.token]),
        expected_text=tokenizer.decode([difference.expected]),
    )
