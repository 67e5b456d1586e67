"""Answers compared with the reference: the results, and the reasons where no comparison is possible."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from bakeoff import results
from bakeoff.engines import Engine, Model, engine
from bakeoff.harness.client import decode_stream
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.quality import asks_logprobs, check_quality
from bakeoff.harness.quality.scorer import Line, Score, Scores
from bakeoff.harness.traffic.planner import traffic_planner
from bakeoff.installation import how_to_install
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.offline import generate, load_engine
from bakeoff.reference_engine.tools.evaluator import score_lines
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics.quality import QualityRecord
from bakeoff.results.records import Outcome, Phase, StreamRecord, TrialPlan, TrialRecord, Verdict, Window
from bakeoff.workloads import Tokenizer, prompt_reader
from tests.harness.samples import stream
from tests.harness.tiny_model import tiny_engine
from tests.workloads.small_tokenizers import LESSON, checkpoint

REQUESTS, TOKENS = 9, 12
Answers = list[list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers around a small tokenizer, and greedy answers that are not all alike."""
    folder = checkpoint(tmp_path_factory.mktemp("model"), bare=True, merges=800)
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4}
    vocabulary = len(Tokenizer(folder).vocabulary) + 3
    LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, eos_token_id=2, **sizes, **heads)).save_pretrained(folder)
    return folder


@pytest.fixture
def _scored_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score in this process, for tests that do not need the scoring process and its seconds of imports."""

    async def scored(model: str, lines: Sequence[Line], limit_s: float) -> Scores:
        assert limit_s > 0
        written = score_lines((msgspec.json.encode(line) for line in lines), Path(model), "float32", "auto")
        scores = [msgspec.json.decode(line, type=Score) for line in written]
        return Scores({score.id: score for score in scores})

    monkeypatch.setattr("bakeoff.harness.quality.check.scored", scored)


class Scene:
    """A finished trial of an engine that never ran: its answers are the model's own, with the changes of a test."""

    def __init__(self, folder: Path, model: Path, **changes: Any) -> None:
        self.tokenizer = Tokenizer(model)
        self.model = Model("tiny", str(model))
        self.experiment = made(model, "http://127.0.0.1:9", **changes)
        self.run: RunFolder = create_run(self.experiment, folder / "runs")
        (self.plan,) = self.experiment.plan()
        with traffic_planner(self.experiment, self.tokenizer) as planner:
            self.traffic = planner.traffic(self.plan.load, 1, self.plan.engine)
            self.traffic.window.write(lambda plan: plan.requests >= REQUESTS)
            self.turns = [turn for planned in self.traffic.window for turn in planned.session.turns][:REQUESTS]
        self.trial = self.run.trial(self.plan.id)

    def prompts(self) -> Answers:
        return [list(prompt_reader(self.tokenizer).ids(turn)) for turn in self.turns]

    def greedy(self) -> Answers:
        made = load_engine(EngineConfig(model=str(self.model.path), dtype="float32", threads=1, num_blocks=256))
        wanted = SamplingParams(max_tokens=TOKENS, min_tokens=TOKENS, temperature=0.0, stop_token_ids=(2,))
        return [generate(made, [prompt], [wanted])[0] for prompt in self.prompts()]

    def record_answers(self, answers: Answers, chunk: Callable[[int], bytes] | None = None, **usage: int) -> None:
        """Write the log that an engine with these answers would leave, after two requests of the ramp."""
        self.trial.create()
        streams = [
            self._stream(i, answer, len(prompt), chunk, usage)
            for i, (answer, prompt) in enumerate(zip(answers, self.prompts(), strict=True))
        ]
        ramp = [msgspec.structs.replace(streams[0], index=i, phase=Phase.RAMP) for i in (-2, -1)]
        with FrameAppender(self.trial.stream_log(0)) as log:
            for record in (*ramp, *streams):
                log.append(record)
            log.flush()
        self.trial.write_requests(
            decode_stream(record, self.engine().dialect, self.tokenizer) for record in self.trial.read_streams()
        )
        self.record = finished(self.plan, self.traffic.record)

    def _stream(
        self,
        index: int,
        answer: list[int],
        prompt_tokens: int,
        chunk: Callable[[int], bytes] | None,
        usage: dict[str, int],
    ) -> StreamRecord:
        reads = [(chunk or with_id)(token) for token in answer]
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(answer)} | usage
        reads.append(sse({"choices": [{"index": 0, "finish_reason": "length"}], "usage": usage}))
        made = stream([(i + 2, read) for i, read in enumerate(reads)])
        return msgspec.structs.replace(made, index=index, session=f"s{index}")

    def engine(self) -> Engine:
        side = self.experiment.engines[0]
        return engine(side.adapter, self.model, side.options, self.experiment.spec_of(side), side)

    async def _checked(self, **changes: Any) -> None:
        with traffic_planner(self.experiment, self.tokenizer) as planner:
            settings = {"experiment": self.experiment, "model": self.model, "tokenizer": self.tokenizer, **changes}
            await check_quality([self.record], self.run, self.engine(), planner=planner, **settings)

    def checked(self, **changes: Any) -> QualityRecord | None:
        asyncio.run(self._checked(**changes))
        return self.trial.read_quality()


def made(model: Path, url: str, **changes: Any) -> Experiment:
    data: dict[str, Any] = {
        "name": "t",
        "repeats": 1,
        "model": {"name": "tiny", "path": str(model)},
        "engines": [{"adapter": "reference", "url": url}],
        "workload": {"name": "random", "options": {"input_tokens": 30, "output_tokens": TOKENS}},
        "loads": [{"concurrency": 2}],
        "trial": {"ramp_s": 0.1, "duration_s": 0.5, "max_requests": 40, "min_requests": 8},
        "client": {"calibrate": False},
        "quality": {"samples": REQUESTS},
        **changes,
    }
    return experiment_from(data, "t")


def sse(payload: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def with_id(token: int) -> bytes:
    return sse({"choices": [{"index": 0, "text": "x", "token_ids": [token]}]})


def with_text(text: str) -> bytes:
    return sse({"choices": [{"index": 0, "text": text}]})


def finished(plan: TrialPlan, traffic: Any) -> TrialRecord:
    return TrialRecord(
        id=plan.id, engine=plan.engine, workload=plan.workload, load=plan.load, repeat=plan.repeat, order=1,
        started_ns=0, ended_ns=9, issue_start_ns=0, issue_end_ns=9, window=Window(0, 9), planned_requests=REQUESTS,
        workload_sha256="", verdict=Verdict.VALID, traffic=traffic,
    )  # fmt: skip


@pytest.mark.usefixtures("_scored_here")
def test_an_engine_with_the_models_own_answers_agrees_at_every_token(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers(scene.greedy())
    record = scene.checked()
    assert record is not None
    assert (record.why, record.warnings) == (None, [])
    assert len(record.samples) == REQUESTS
    assert {sample.why for sample in record.samples} == {None}
    assert record.summary is not None
    assert (record.summary.agreement, record.summary.mean_regret) == (1.0, 0.0)
    assert (record.summary.answers, record.summary.tokens) == (REQUESTS, REQUESTS * TOKENS)
    assert not record.summary.differs


@pytest.mark.usefixtures("_scored_here")
def test_an_engine_that_flips_a_token_is_found_out(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    answers = scene.greedy()
    right = answers[4][7]
    answers[4][7] = wrong = 50 if right != 50 else 51
    scene.record_answers(answers)
    record = scene.checked()
    assert record is not None
    flipped = next(sample for sample in record.samples if sample.index == 4)
    assert flipped.first_divergence == flipped.matched_prefix == 7
    assert flipped.first is not None
    assert (flipped.first.token, flipped.first.expected) == (wrong, right)
    assert flipped.first.token_text == scene.tokenizer.decode([wrong])
    assert flipped.first.expected_text == scene.tokenizer.decode([right])
    assert flipped.first.regret > 0.2
    assert [sample.agreement for sample in record.samples if sample.index != 4] == [1.0] * (REQUESTS - 1)
    assert record.summary is not None
    assert record.summary.identical == REQUESTS - 1
    assert record.summary.max_regret >= flipped.first.regret


@pytest.mark.usefixtures("_scored_here")
def test_an_engine_with_other_weights_is_called_out(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[5 + i, 90 + i] * (TOKENS // 2) for i in range(REQUESTS)])
    record = scene.checked()
    assert record is not None
    assert record.summary is not None
    assert record.summary.early == REQUESTS
    assert record.summary.differs


@pytest.mark.usefixtures("_scored_here")
def test_text_is_read_by_the_tokenizer_where_no_ids_come(tmp_path: Path, model: Path) -> None:
    tokenizer = Tokenizer(model)
    words = tokenizer.encode(LESSON)
    answers = [words[i * TOKENS : (i + 1) * TOKENS] for i in range(REQUESTS)]
    records = []
    for name in ("ids", "text"):
        scene = Scene(tmp_path / name, model, quality={"samples": 3})
        scene.record_answers(answers, with_id if name == "ids" else lambda token: with_text(tokenizer.decode([token])))
        record = scene.checked()
        assert record is not None
        records.append(record)
    by_id, by_text = records
    assert not any(sample.retokenised for sample in by_id.samples)
    assert by_text.samples == [msgspec.structs.replace(sample, retokenised=True) for sample in by_id.samples]
    assert by_text.summary is not None
    assert by_text.summary.retokenised == 3


@pytest.mark.usefixtures("_scored_here")
def test_as_many_answers_are_compared_as_are_asked_for_and_the_same_for_every_engine(
    tmp_path: Path, model: Path
) -> None:
    places = []
    for name in "ab":
        scene = Scene(tmp_path / name, model, quality={"samples": 3})
        scene.record_answers([[7] * TOKENS] * REQUESTS)
        record = scene.checked()
        assert record is not None
        places.append([sample.index for sample in record.samples])
    assert len(places[0]) == 3
    assert places[0] == places[1]
    assert min(places[0]) >= 0, "the ramp is never compared"


def test_only_answers_that_ended_well_are_compared(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    failed = [msgspec.structs.replace(r, outcome=Outcome.TIMEOUT) for r in scene.trial.read_requests()]
    scene.trial.write_requests(failed)
    assert scene.checked() == QualityRecord(why="no answer completed successfully")


@pytest.mark.usefixtures("_scored_here")
@pytest.mark.parametrize("history", ["recorded", "live", "live-ids"])
def test_prompts_with_the_engines_own_answers_are_not_compared(tmp_path: Path, model: Path, history: str) -> None:
    """Their length may be the planned one, so that no count would tell."""
    workload = {"name": "random", "options": {"input_tokens": 30, "output_tokens": TOKENS}, "history": history}
    scene = Scene(tmp_path, model, workload=workload)
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    requests = scene.trial.read_requests()
    scene.trial.write_requests(
        [msgspec.structs.replace(r, requested_input_tokens=None if r.index % 2 else 30) for r in requests]
    )
    record = scene.checked()
    assert record is not None
    compared = {sample.index for sample in record.samples}
    assert compared == {index for index in range(REQUESTS) if history == "recorded" or index % 2 == 0}


def test_a_prompt_that_the_engine_counts_otherwise_is_not_compared(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS, prompt_tokens=31)
    record = scene.checked()
    assert record is not None
    assert record.summary is None
    assert {s.why for s in record.samples} == {"the engine counted 31 prompt tokens, the model's tokenizer 30"}


def test_switched_off_nothing_is_written(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model, quality={"samples": 0})
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    assert scene.checked() is None


def test_what_is_stored_is_not_made_again(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    stored = QualityRecord(why="as stored")
    scene.trial.write_quality(stored)
    assert scene.checked() == stored


def test_without_weights_there_is_a_reason(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    assert scene.checked(model=Model("tiny")) == QualityRecord(
        why="the run names no files of the model; set path in [model]"
    )


def test_without_the_extra_there_is_a_reason(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    record = scene.checked()
    assert record is not None
    assert record.why == f"the reference is not installed here; run: {how_to_install('engine')}"


def test_words_of_another_plan_are_not_compared(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    scene.record = finished(scene.plan, msgspec.structs.replace(scene.traffic.record, sha256="other"))
    assert scene.checked() == QualityRecord(why="the trial was sent other prompts than this run plans")


def test_a_reference_that_fails_is_a_warning_and_every_answer_has_the_reason(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 64)
    record = scene.checked(model=Model("tiny", str(broken)))
    assert record is not None
    assert record.summary is None
    (warning,) = record.warnings
    assert warning.startswith("the reference ended with status 2: ")
    assert {sample.why for sample in record.samples} == {warning}


def test_a_reference_that_takes_too_long_is_stopped(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model, quality={"samples": 2, "limit_s": 0.01})
    scene.record_answers([[7] * TOKENS] * REQUESTS)
    record = scene.checked()
    assert record is not None
    assert record.warnings == ["the reference took longer than quality.limit_s, 0.01 s"]
    assert not references()


def test_an_interrupted_check_leaves_no_process_and_no_record(tmp_path: Path, model: Path) -> None:
    scene = Scene(tmp_path, model)
    scene.record_answers([[7] * TOKENS] * REQUESTS)

    async def interrupted() -> None:
        task = asyncio.create_task(scene._checked())
        async with asyncio.timeout(30):
            while not references():  # noqa: ASYNC110  (another process begins)
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(interrupted())
    assert not references()
    assert scene.trial.read_quality() is None


def references() -> list[psutil.Process]:
    """Child processes that score."""
    return [child for child in psutil.Process().children() if "score" in child.cmdline()]


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_a_real_engine_is_compared_with_itself_and_its_log_probabilities_too(tmp_path: Path, model: Path) -> None:
    """Over HTTP, under load, in batches: float32 against float32."""

    async def scene() -> results.Run:
        async with tiny_engine(model, tmp_path / "engine.log", max_model_len=512, num_blocks=512) as url:
            experiment = made(model, url, loads=[{"concurrency": 3}], quality={"samples": 4, "logprobs": True})
            run = create_run(experiment, tmp_path / "runs")
            await run_experiment(experiment, run, PlainObserver(Console(quiet=True), experiment))
        (side,), tokenizer = experiment.engines, Tokenizer(model)
        spoken = engine(side.adapter, Model("tiny", str(model)), side.options, experiment.spec_of(side), side)
        with traffic_planner(experiment, tokenizer) as planner:
            await check_quality(
                list(run.read_log().finished.values()), run, spoken,
                experiment=experiment, model=Model("tiny", str(model)), tokenizer=tokenizer, planner=planner,
            )  # fmt: skip
        return results.load(run.path)

    run = asyncio.run(scene())
    assert all("quality.json" in trial.record.files for trial in run.finished)
    (trial,) = run.finished
    asks = asks_logprobs("1/c=3", 4)
    for record in run.folder.trial(trial.record.id).read_streams():
        wanted = record.phase is Phase.MEASURED and asks(record.index)
        assert (b'"logprobs":{' in b"".join(record.reads)) is wanted
    assert trial.quality is not None
    assert trial.quality.summary is not None
    assert trial.quality.summary.answers == 4
    assert trial.quality.summary.mean_regret < 1e-5
    assert trial.quality.summary.agreement > 0.95, "but for exact ties"
    assert trial.quality.summary.max_abs_logprob_diff is not None
    assert trial.quality.summary.max_abs_logprob_diff < 1e-3
