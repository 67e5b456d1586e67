"""Distils a teacher into a student with the same tokenizer: a draft model for speculative decoding.

First the teacher writes answers to prompts (`teacher_text`), then the student learns from their distributions
(`training`). All that an unfinished run needs to go on lies in a folder `training` in the target, which is a checkpoint
only when the run has ended.
"""

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from reference_engine.engine.resolution import resolve_device
from reference_engine.errors import ConfigError
from reference_engine.loading.checkpoint import Checkpoint
from reference_engine.loading.files import read_text
from reference_engine.loading.safetensors import SafetensorsDirectory
from reference_engine.offline import LLM, interrupts_held
from reference_engine.speculation.draft_vocabulary import DraftVocabulary
from reference_engine.tools.checkpoint_folder import copy_tokenizer, new_checkpoint, write_json, write_weights
from reference_engine.tools.progress import Progress
from reference_engine.tools.teacher_text import Exchange, TextPlan, prompts_of, written_text
from reference_engine.tools.training import Batches, HeldOut, LossName, Trainer
from reference_engine.tools.transformers_model import load_model, open_directory
from reference_engine.tools.unfinished import begin, check_new, digest, flag
from reference_engine.tools.vocabulary_trimming import (
    check_rows,
    coverage_text,
    frequent_vocabulary,
    write_draft_vocabulary,
)

RECORD = "distillation.jsonl"
_WORK, _STATE, _TEXT = "training", "state.pt", "text.jsonl"
_POSITIVE = ("steps", "batch_tokens", "text_tokens", "answer_tokens", "save_steps")
_FREE = ("save_steps", "trim_vocabulary")  # may differ when a run goes on
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """Settings; the weights that result depend on all but `save_steps` and `trim_vocabulary`.

    Attributes:
        loss: see `training.divergences`.
        steps: of the optimizer.
        batch_tokens: tokens of a step, prompts and padding included, at most.
        learning_rate: at its peak.
        text_tokens: tokens of answers that the teacher writes; they are learned from several times if the steps need
            more.
        answer_tokens: tokens of one answer, at most.
        temperature: the teacher's, of sampling.
        seed: of prompts, sampling and order.
        dtype: to compute in; weights and optimizer are float32. auto: bfloat16 on a GPU, float32 on a CPU.
        save_steps: steps between two saved states, and between two measurements on held-out text.
        trim_vocabulary: rows that the head keeps when the student drafts; None for all.

    Raises:
        ConfigError: a value is out of range.
    """

    loss: LossName = "forward-kl"
    steps: int = 300
    batch_tokens: int = 2048
    learning_rate: float = 5e-4
    text_tokens: int = 131_072
    answer_tokens: int = 128
    temperature: float = 1.0
    seed: int = 0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    save_steps: int = 50
    trim_vocabulary: int | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{flag(name)} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.learning_rate <= 1:
            raise ConfigError(f"--learning-rate must be above 0 and at most 1, not {self.learning_rate}")
        if self.temperature < 0 or self.seed < 0:
            raise ConfigError("--temperature and --seed must be at least 0")


def distil(
    teacher: Path,
    student: Path,
    target: Path,
    distillation: Distillation,
    *,
    text: Path | None,
    device: str = "auto",
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> HeldOut:
    """Trains, and writes `target`: a checkpoint as the student's, with distillation.json and distillation.jsonl.

    Ctrl-C takes effect after the step under way, whose state is saved; calling it again with the same arguments goes
    on, and ends with the same weights.

    Args:
        teacher: checkpoint directory of a family in `transformers_model.FAMILIES`.
        student: another one with the same tokenizer and vocabulary.
        target: directory to create, or one that holds an unfinished run of the same settings.
        distillation: settings.
        text: UTF-8 file whose lines are prompts; None for the standard input.
        device: ``auto``, ``cpu`` or ``cuda``.
        say: is called with lines about the progress.
        clock: in seconds.

    Returns:
        How the student does at the end.

    Raises:
        CheckpointError: a model cannot be read, or the target holds something else.
        ConfigError: settings or models contradict each other, or Transformers is not installed.
        RequestError: the text cannot be read, or has too few lines.
        KeyboardInterrupt: the state has been saved.
    """
    check_new(target, _WORK)
    models = open_directory(teacher), open_directory(student)
    _check_pair(*models)
    if distillation.trim_vocabulary is not None:
        check_rows(models[1], distillation.trim_vocabulary)
    words = read_text(text)
    place = resolve_device(device)
    longest = min(distillation.batch_tokens, *(model.config.default_length for model in models))
    plan = TextPlan(
        text_tokens=distillation.text_tokens,
        answer_tokens=distillation.answer_tokens,
        max_length=longest,
        temperature=distillation.temperature,
        seed=distillation.seed,
    )
    prompts = prompts_of(words, models[0].tokenizer, plan)
    work = target / _WORK
    settings = {
        **dataclasses.asdict(distillation),
        "teacher": digest(teacher),
        "student": digest(student),
        "text": hashlib.sha256(words.encode()).hexdigest(),
        "device": place,
    }
    begin(work, settings, _FREE)
    held_out, learned = written_text(
        work / _TEXT,
        lambda: LLM(teacher, device=place, max_model_len=longest, enable_prefix_caching=False),
        prompts,
        plan,
        say,
    )
    trainer = _trainer(teacher, student, learned, distillation, torch.device(place))
    result = _Run(trainer, held_out, target, distillation, say=say, clock=clock).finish()
    vocabulary = None
    if distillation.trim_vocabulary is not None:
        answers, unseen = ([one.answer for one in exchanges] for exchanges in (learned, held_out))
        vocabulary = frequent_vocabulary(models[1], distillation.trim_vocabulary, answers)
        say(f"drafts {coverage_text(vocabulary, unseen)} of the held-out answers")
    _write(student, target, trainer.student, {**settings, "result": dataclasses.asdict(result)}, vocabulary)
    say(f"wrote {target}: {_text(result)}")
    return result


class _Run:
    """The steps of one process, and their record."""

    def __init__(
        self,
        trainer: Trainer,
        held_out: list[Exchange],
        target: Path,
        distillation: Distillation,
        *,
        say: Say,
        clock: Callable[[], float],
    ) -> None:
        self._trainer, self._held_out, self._say, self._clock = trainer, held_out, say, clock
        self._steps, self._save_steps = distillation.steps, distillation.save_steps
        self._state, self._record = target / _WORK / _STATE, target / RECORD
        if self._state.exists():
            trainer.restore(self._state)
            _cut_record(self._record, trainer.step)
            say(f"goes on after step {trainer.step} of {self._steps}")
        else:
            self._record.write_bytes(b"")
            self._note(None, None, trainer.evaluate(held_out))
        self._progress = Progress(say, "step", trainer.step, self._steps, clock)

    def finish(self) -> HeldOut:
        """Makes the steps that are left."""
        trainer = self._trainer
        with interrupts_held() as let_through:
            while trainer.step < self._steps:
                self._make_step()
                try:
                    let_through()
                except KeyboardInterrupt:
                    trainer.save(self._state)
                    self._say(f"saved after step {trainer.step} of {self._steps}; the same command goes on")
                    raise
        return trainer.evaluate(self._held_out)

    def _make_step(self) -> None:
        trainer, began_s = self._trainer, self._clock()
        loss, tokens = trainer.train_step()
        rate = tokens / max(self._clock() - began_s, 1e-9)
        is_due = trainer.step % self._save_steps == 0
        held_out = trainer.evaluate(self._held_out) if is_due or trainer.step == self._steps else None
        self._note(loss, rate, held_out)
        if is_due:
            trainer.save(self._state)
        shown = "" if held_out is None else f", {_text(held_out)}"
        self._progress.advance(trainer.step, f", loss {loss:.4f}{shown}, {rate:,.0f} tokens/s", is_due=bool(shown))

    def _note(self, loss: float | None, rate: float | None, held_out: HeldOut | None) -> None:
        line = {
            "step": self._trainer.step,
            "loss": loss,
            "held_out_kl": None if held_out is None else held_out.kl,
            "acceptance": None if held_out is None else held_out.acceptance,
            "tokens_per_s": rate,
        }
        with self._record.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")


def _text(held_out: HeldOut) -> str:
    return f"held-out KL {held_out.kl:.4f}, acceptance {held_out.acceptance:.3f}"


def _cut_record(record: Path, step: int) -> None:
    """Drops the lines of steps that are made again, and one that a crash cut off."""
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True) if record.exists() else []
    whole = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
    scratch = record.with_name(f".{record.name}")
    scratch.write_text("".join(whole), encoding="utf-8")
    scratch.replace(record)


def _check_pair(teacher: Checkpoint, student: Checkpoint) -> None:
    if teacher.tokenizer.backend.get_vocab() != student.tokenizer.backend.get_vocab():
        raise ConfigError(f"{student.path} has another tokenizer than {teacher.path}; choose a student with the same")
    sizes = student.config.vocab_size, teacher.config.vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{student.path} has logits for {sizes[0]} tokens, the teacher for {sizes[1]}; choose another"
        )


def _trainer(
    teacher: Path, student: Path, learned: list[Exchange], distillation: Distillation, device: torch.device
) -> Trainer:
    wide = torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = wide if distillation.dtype == "auto" else getattr(torch, distillation.dtype)
    return Trainer(
        load_model(teacher, device, dtype),
        load_model(student, device),
        Batches(learned, distillation.batch_tokens, distillation.seed),
        loss=distillation.loss,
        steps=distillation.steps,
        peak=distillation.learning_rate,
        dtype=dtype,
        seed=distillation.seed,
    )


def _write(
    student: Path,
    target: Path,
    model: Any,  # noqa: ANN401 (Transformers' class)
    record: Mapping[str, Any],
    vocabulary: DraftVocabulary | None,
) -> None:
    """Puts the checkpoint, in the student's dtypes, in the place of the unfinished run."""
    source, state = SafetensorsDirectory(student), model.state_dict()
    with new_checkpoint(target) as scratch:
        write_weights(scratch, {name: state[name].cpu().to(source.get(name).dtype) for name in source.names()})
        copy_tokenizer(student, scratch)
        shutil.copyfile(student / "config.json", scratch / "config.json")
        shutil.copyfile(target / RECORD, scratch / RECORD)
        write_json(scratch / "distillation.json", record)
        if vocabulary is not None:
            write_draft_vocabulary(scratch, vocabulary)
