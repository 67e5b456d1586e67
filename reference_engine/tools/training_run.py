"""Trainings that can be interrupted: settings, state and record in the folder of the future result.

Everything that an unfinished run needs is in a folder `training` in the target, which becomes a checkpoint only when
the run has ended.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.offline import interrupts_held
from bakeoff.reference_engine.tools.checkpoint_folder import whole_file
from bakeoff.reference_engine.tools.progress import Progress
from bakeoff.reference_engine.tools.teacher_text import Exchange, TextPlan
from bakeoff.reference_engine.tools.training import HeldOut, Trainer
from bakeoff.reference_engine.tools.unfinished import begin, check_new, flag

_WORK, _STATE, _TEXT = "training", "state.pt", "text.jsonl"
_POSITIVE = ("steps", "batch_tokens", "text_tokens", "answer_tokens", "save_steps")
_FREE = ("save_steps",)  # may change when a run is resumed
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Settings of all trainings; the resulting weights depend on all but `save_steps`.

    Raises:
        ConfigError: a value is out of range.
    """

    steps: Annotated[int, "number of optimizer steps"] = 300
    batch_tokens: Annotated[int, "maximum tokens of a step, prompts and padding included"] = 2048
    learning_rate: Annotated[float, "peak learning rate"] = 5e-4
    text_tokens: Annotated[int, "tokens that the teacher writes; they are reused if the steps need more"] = 131_072
    answer_tokens: Annotated[int, "maximum tokens of one answer"] = 128
    temperature: Annotated[float, "temperature at which the teacher samples"] = 1.0
    seed: Annotated[int, "seed of weights, prompts, sampling and order"] = 0
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        "type to compute in; weights and optimizer are float32. auto: bfloat16 on a GPU, float32 on a CPU",
    ] = "auto"
    save_steps: Annotated[int, "steps between two saved states, and between two measurements on held-out text"] = 50

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{flag(name)} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.learning_rate <= 1:
            raise ConfigError(f"--learning-rate must be above 0 and at most 1, not {self.learning_rate}")
        if self.temperature < 0 or self.seed < 0:
            raise ConfigError("--temperature and --seed must be at least 0")

    def dtype_on(self, device: torch.device) -> torch.dtype:
        """The type to compute in."""
        wide = torch.bfloat16 if device.type == "cuda" else torch.float32
        return wide if self.dtype == "auto" else getattr(torch, self.dtype)

    def text_plan(self, *models: ModelConfig) -> TextPlan:
        """Plan of the teacher's text, which is never longer than a step or than any of these models can take."""
        return TextPlan(
            text_tokens=self.text_tokens,
            answer_tokens=self.answer_tokens,
            max_length=min(self.batch_tokens, *(model.default_length for model in models)),
            temperature=self.temperature,
            seed=self.seed,
        )


class TrainingFolder:
    """The folder of a training.

    Args:
        target: directory to create, or one that holds an unfinished run.
        name: of the training, for its files.

    Attributes:
        target: the same.
        settings_name: file name of the settings in the result.
        record_name: file name of the record, JSON lines, during and after the training.

    Raises:
        CheckpointError: the target holds something else.
    """

    def __init__(self, target: Path, name: str) -> None:
        self.target, self.settings_name, self.record_name = target, f"{name}.json", f"{name}.jsonl"
        self._work = target / _WORK
        check_new(target, _WORK)

    @property
    def text(self) -> Path:
        """File of the teacher's text."""
        return self._work / _TEXT

    @property
    def state(self) -> Path:
        """File of the trainer's state."""
        return self._work / _STATE

    @property
    def record(self) -> Path:
        """File of the record."""
        return self.target / self.record_name

    def begin(self, settings: Mapping[str, Any], free: Collection[str] = _FREE) -> None:
        begin(self._work, settings, free)


class TrainingRun:
    """The steps of one process, and their record.

    Args:
        trainer: with a new state; a saved state is restored.
        held_out: text to measure on.
        folder: folder of the training.
        settings: settings of the training.
        say: called with lines of progress.
        clock: in seconds.
    """

    def __init__(
        self,
        trainer: Trainer,
        held_out: Sequence[Exchange],
        folder: TrainingFolder,
        settings: TrainingSettings,
        *,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer, self._held_out, self._say, self._clock = trainer, held_out, say, clock
        self._steps, self._save_steps = settings.steps, settings.save_steps
        self._state, self._record = folder.state, folder.record
        if self._state.exists():
            trainer.restore(self._state)
            _cut_record(self._record, trainer.step)
            say(f"goes on after step {trainer.step} of {self._steps}")
        else:
            self._record.write_bytes(b"")
            self._note(None, None, trainer.evaluate(held_out))
        self._progress = Progress(say, "step", trainer.step, self._steps, clock)

    def finish(self) -> HeldOut:
        """Makes the remaining steps."""
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
        suffix = "" if held_out is None else f", {text_of(held_out)}"
        self._progress.advance(trainer.step, f", loss {loss:.4f}{suffix}, {rate:,.0f} tokens/s", is_due=bool(suffix))

    def _note(self, loss: float | None, rate: float | None, held_out: HeldOut | None) -> None:
        measured = {"held_out_kl": None, "acceptance": None} if held_out is None else held_out.record()
        line = {"step": self._trainer.step, "loss": loss, **measured, "tokens_per_s": rate}
        with self._record.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")


def text_of(held_out: HeldOut) -> str:
    """Text for a line of progress."""
    return f"held-out KL {held_out.kl:.4f}, acceptance {held_out.acceptance:.3f}"


def _cut_record(record: Path, step: int) -> None:
    """Drops the lines of steps that will be made again, and an incomplete line from a crash."""
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True) if record.exists() else []
    whole = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
    with whole_file(record) as scratch:
        scratch.write_text("".join(whole), encoding="utf-8")
