"""Distils a teacher into a student with the same tokenizer, to be a draft model or to be quantised afterwards.

First the teacher writes answers to prompts (`teacher_text`), then the student is trained on the teacher's distributions
(`training`), in a run that can be interrupted (`training_run`).
"""

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch

from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.core.quantization_names import RoundingName
from bakeoff.reference_engine.engine.resolution import resolve_device
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.checkpoint import Checkpoint
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.speculation.draft_vocabulary import DraftVocabulary
from bakeoff.reference_engine.tools.checkpoint_folder import copy_tokenizer, new_checkpoint, write_json, write_weights
from bakeoff.reference_engine.tools.importance import layer_matrices
from bakeoff.reference_engine.tools.quantisation_methods import Quantising
from bakeoff.reference_engine.tools.straight_through import plain_weights, round_matrices
from bakeoff.reference_engine.tools.teacher_text import Exchange, prompts_of, written_text
from bakeoff.reference_engine.tools.training import Batches, HeldOut, LossName, NextTokens, Trainer
from bakeoff.reference_engine.tools.training_run import Say, TrainingFolder, TrainingRun, TrainingSettings, text_of
from bakeoff.reference_engine.tools.transformers_model import load_model, open_directory
from bakeoff.reference_engine.tools.unfinished import digest
from bakeoff.reference_engine.tools.vocabulary_trimming import (
    check_rows,
    coverage_text,
    frequent_vocabulary,
    write_draft_vocabulary,
)

_FREE = ("save_steps", "trim_vocabulary")  # may change when a run is resumed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Distillation(TrainingSettings):
    """Settings of a distillation. The resulting weights do not depend on `trim_vocabulary` either."""

    loss: Annotated[LossName, "divergence of the student from the teacher to minimise"] = "forward-kl"
    trim_vocabulary: Annotated[
        int | None, "number of tokens that the student proposes as a draft model (default: all)"
    ] = None
    rounded_to: Annotated[
        RoundingName | None, "method of quantize by which matrices are rounded during training (default: none)"
    ] = None
    group_size: Annotated[int | None, "of --rounded-to: number of inputs that share a scale"] = None

    def __post_init__(self) -> None:
        super(Distillation, self).__post_init__()
        if self.rounded_to is not None:
            Quantising(method=self.rounded_to, group_size=self.group_size)
        elif self.group_size is not None:
            raise ConfigError("--group-size is for --rounded-to; leave it out")


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
    """Trains a student and writes `target`: its checkpoint, with distillation.json and distillation.jsonl.

    Ctrl-C takes effect after the current step, whose state is saved; calling it again with the same arguments resumes
    the run, and ends with the same weights.

    Args:
        teacher: checkpoint directory of a family in `transformers_model.FAMILIES`.
        student: checkpoint directory with the same tokenizer and vocabulary.
        target: directory to create, or one that holds an unfinished run of the same settings.
        distillation: settings.
        text: UTF-8 file whose lines are prompts; None for the standard input.
        device: ``auto``, ``cpu`` or ``cuda``.
        say: called with lines of progress.
        clock: in seconds.

    Returns:
        Measurements of the student at the end.

    Raises:
        CheckpointError: a model cannot be read, or the target holds something else.
        ConfigError: settings or models contradict each other, or Transformers is not installed.
        RequestError: the text cannot be read, or has too few lines.
        KeyboardInterrupt: the state has been saved.
    """
    folder = TrainingFolder(target, "distillation")
    models = open_directory(teacher), open_directory(student)
    _check_pair(*models)
    if distillation.trim_vocabulary is not None:
        check_rows(models[1], distillation.trim_vocabulary)
    words = read_text(text)
    place = resolve_device(device)
    plan = distillation.text_plan(*(model.config for model in models))
    prompts = prompts_of(words, models[0].tokenizer, plan)
    settings = {
        **dataclasses.asdict(distillation),
        "teacher": digest(teacher),
        "student": digest(student),
        "text": hashlib.sha256(words.encode()).hexdigest(),
        "device": place,
    }
    folder.begin(settings, _FREE)
    held_out, learned = written_text(folder.text, teacher, place, prompts, plan, say=say)
    trainer = _trainer(teacher, student, learned, distillation, torch.device(place))
    result = TrainingRun(trainer, held_out, folder, distillation, say=say, clock=clock).finish()
    vocabulary = None
    if distillation.trim_vocabulary is not None:
        answers, unseen = ([exchange.answer for exchange in exchanges] for exchanges in (learned, held_out))
        vocabulary = frequent_vocabulary(models[1], distillation.trim_vocabulary, answers)
        say(f"drafts {coverage_text(vocabulary, unseen)} of the held-out answers")
    _write(student, folder, trainer.student, {**settings, "result": dataclasses.asdict(result)}, vocabulary)
    say(f"wrote {target}: {text_of(result)}")
    return result


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
    dtype = distillation.dtype_on(device)
    model = load_model(student, device)
    if distillation.rounded_to is not None:
        quantising = Quantising(method=distillation.rounded_to, group_size=distillation.group_size)
        widths = {module.in_features for _, module in layer_matrices(model)}
        round_matrices(model, quantising.plan(widths).scheme)
    return Trainer(
        NextTokens(load_model(teacher, device, dtype), model, distillation.loss),
        Batches(learned, distillation.batch_tokens, distillation.seed),
        steps=distillation.steps,
        peak=distillation.learning_rate,
        dtype=dtype,
        seed=distillation.seed,
    )


def _write(
    student: Path,
    folder: TrainingFolder,
    model: Any,  # noqa: ANN401 (Transformers' class)
    record: Mapping[str, Any],
    vocabulary: DraftVocabulary | None,
) -> None:
    """Writes the checkpoint, in the student's dtypes, in place of the unfinished run."""
    source, state = SafetensorsDirectory(student), plain_weights(model)
    with new_checkpoint(folder.target) as scratch:
        write_weights(scratch, {name: state[name].cpu().to(source.get(name).dtype) for name in source.names()})
        copy_tokenizer(student, scratch)
        shutil.copyfile(student / "config.json", scratch / "config.json")
        shutil.copyfile(folder.record, scratch / folder.record_name)
        write_json(scratch / folder.settings_name, record)
        if vocabulary is not None:
            write_draft_vocabulary(scratch, vocabulary)
