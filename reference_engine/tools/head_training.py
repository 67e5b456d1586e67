"""Trains an EAGLE-3 draft head (Li et al., arXiv 2503.01840) on text written by its model.

Text, trainer, interruption and record are those of distillation. The head learns the model's distribution at each place
of a chain of drafts, fed with its own outputs as in drafting.
"""

import contextlib
import dataclasses
import hashlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch

from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.speculation_settings import MOST_TOKENS
from bakeoff.reference_engine.engine.resolution import DTYPES, resolve_device
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.models.eagle import EagleConfig, default_taps
from bakeoff.reference_engine.tools.checkpoint_folder import new_checkpoint, write_json
from bakeoff.reference_engine.tools.head_checkpoint import write_head
from bakeoff.reference_engine.tools.head_model import TrainableHead
from bakeoff.reference_engine.tools.teacher_text import Exchange, prompts_of, written_text
from bakeoff.reference_engine.tools.training import Batches, HeldOut, Trainer, divergences, padded
from bakeoff.reference_engine.tools.training_run import Say, TrainingFolder, TrainingRun, TrainingSettings, text_of
from bakeoff.reference_engine.tools.transformers_model import load_model, open_directory
from bakeoff.reference_engine.tools.unfinished import digest
from bakeoff.reference_engine.tools.vocabulary_trimming import most_frequent

_LATER = 0.8
"""Weight of a place of a chain relative to the previous one, as in EAGLE-3's released code."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining(TrainingSettings):
    """Settings of the training of a draft head."""

    places: Annotated[int, "number of drafts of a chain that are trained"] = 3
    draft_vocab: Annotated[
        int, "number of tokens that the head can propose, those that the model writes most often; 0: all"
    ] = 0

    def __post_init__(self) -> None:
        super(HeadTraining, self).__post_init__()
        if not 1 <= self.places <= MOST_TOKENS:
            raise ConfigError(f"--places must be 1 to {MOST_TOKENS}, not {self.places}")
        if self.draft_vocab < 0:
            raise ConfigError(f"--draft-vocab must be at least 0, not {self.draft_vocab}")


@dataclasses.dataclass(frozen=True, slots=True)
class HeadHeldOut(HeldOut):
    """Measurements of a head on held-out text; `kl` and `acceptance` are those of first drafts.

    Attributes:
        by_place: acceptance of each draft of a chain whose earlier tokens are the text's.
    """

    by_place: tuple[float, ...]

    def record(self) -> dict[str, Any]:
        return {"held_out_kl": self.kl, "acceptance": self.acceptance, "acceptance_by_place": list(self.by_place)}


def train_head(
    model: Path,
    target: Path,
    training: HeadTraining,
    *,
    text: Path | None,
    device: str = "auto",
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> HeldOut:
    """Trains a head and writes `target`: the layout of the speculators project, training.json and training.jsonl.

    Ctrl-C takes effect after the current step, whose state is saved; calling it again with the same arguments resumes
    the run, and ends with the same weights.

    Args:
        model: checkpoint directory of a family in `transformers_model.FAMILIES`.
        target: directory to create, or one that holds an unfinished run of the same settings.
        training: settings.
        text: UTF-8 file whose lines are prompts; None for the standard input.
        device: ``auto``, ``cpu`` or ``cuda``.
        say: called with lines of progress.
        clock: in seconds.

    Returns:
        Measurements of the head at the end.

    Raises:
        CheckpointError: the model cannot be read, or the target holds something else.
        ConfigError: settings contradict each other or the model, or Transformers is not installed.
        RequestError: the text cannot be read, or has too few lines.
        KeyboardInterrupt: the state has been saved.
    """
    folder = TrainingFolder(target, "training")
    checkpoint = open_directory(model)
    vocab_size = checkpoint.config.vocab_size
    if training.draft_vocab > vocab_size:
        raise ConfigError(f"--draft-vocab {training.draft_vocab} is more than the model's {vocab_size} tokens")
    words = read_text(text)
    place = resolve_device(device)
    plan = training.text_plan(checkpoint.config)
    prompts = prompts_of(words, checkpoint.tokenizer, plan)
    settings = {
        **dataclasses.asdict(training),
        "teacher": digest(model),
        "text": hashlib.sha256(words.encode()).hexdigest(),
        "device": place,
    }
    folder.begin(settings)
    held_out, learned = written_text(folder.text, model, place, prompts, plan, say=say)
    tokens = frequent_tokens(learned, training.draft_vocab, vocab_size)
    config = head_config(checkpoint.config, None if tokens is None else len(tokens))
    dtype = training.dtype_on(torch.device(place))
    teacher = load_model(model, torch.device(place), dtype)
    head = new_head(teacher, config, tokens, training.seed)
    trainer = Trainer(
        HeadLesson(teacher, head, config, tokens, training.places),
        Batches(learned, training.batch_tokens, training.seed),
        steps=training.steps,
        peak=training.learning_rate,
        dtype=dtype,
        seed=training.seed,
    )
    result = TrainingRun(trainer, held_out, folder, training, say=say, clock=clock).finish()
    with new_checkpoint(target) as scratch:
        stored = DTYPES.get(config.layer.dtype, torch.float32)
        tensors = {name: tensor.cpu().to(stored) for name, tensor in head.state_dict().items()}
        # Speculators also writes it; without it its loader depends on how Transformers fills in missing tensors.
        tensors["embed_tokens.weight"] = checkpoint.weights.get("model.embed_tokens.weight")
        write_head(scratch, config, tensors, tokens=tokens, model=model.resolve(), num_tokens=training.places)
        shutil.copyfile(folder.record, scratch / folder.record_name)
        write_json(scratch / folder.settings_name, {**settings, "result": dataclasses.asdict(result)})
    say(f"wrote {target}: {text_of(result)}")
    return result


def head_config(model: ModelConfig, draft_vocab_size: int | None = None) -> EagleConfig:
    """A head for a model: one Llama layer of the model's shapes; None for the model's whole vocabulary."""
    layer = dataclasses.replace(
        model,
        model_type="llama",
        num_hidden_layers=1,
        attention_bias=False,
        qkv_bias=False,
        qk_norm=False,
        mlp_bias=False,
        tie_word_embeddings=False,
        windows=(),
    )
    taps = default_taps(model.num_hidden_layers)
    return EagleConfig(layer, draft_vocab_size or model.vocab_size, taps, norm_before_residual=False)


def frequent_tokens(text: Sequence[Exchange], count: int, vocab_size: int) -> torch.Tensor | None:
    """The most frequent tokens of the answers, int64 [count], ascending; None if `count` means all."""
    if count in (0, vocab_size):
        return None
    frequencies = Counter(token for exchange in text for token in exchange.answer)
    return torch.tensor(most_frequent(frequencies, count, vocab_size))


def new_head(teacher: Any, config: EagleConfig, tokens: torch.Tensor | None, seed: int) -> TrainableHead:  # noqa: ANN401
    """A head to train, in float32 on the teacher's device, with the teacher's final norm and its rows of the head."""
    head = TrainableHead(config, seed)
    rows = teacher.lm_head.weight.detach().float().cpu()
    with torch.no_grad():
        head.lm_head.weight.copy_(rows if tokens is None else rows[tokens])
        head.norm.weight.copy_(teacher.model.norm.weight.detach().float().cpu())
    return head.to(teacher.device)


class HeadLesson:
    """The model's distribution at each place of a chain of drafts; a `Lesson`.

    If the head cannot propose all tokens, it learns the distribution among those that it can, weighted by their total
    probability.

    Args:
        teacher: of Transformers; not changed.
        head: on the same device.
        config: config of the head.
        tokens: see `eagle.draft_tokens`.
        places: number of drafts of a chain.
    """

    def __init__(
        self,
        teacher: Any,  # noqa: ANN401 (see load_model)
        head: TrainableHead,
        config: EagleConfig,
        tokens: torch.Tensor | None,
        places: int,
    ) -> None:
        self._teacher, self.student, self._places = teacher, head, places
        self._layers = config.taps or ()
        self._tokens = None if tokens is None else tokens.to(teacher.device)

    def loss(self, batch: Sequence[Exchange]) -> torch.Tensor:
        """The mean over places, with smaller weights for later ones."""
        weights = [_LATER**place for place in range(self._places)]
        losses = [
            (mass * divergences(expected, logits, "forward-kl")).sum() / max(1, len(logits))
            for _, expected, mass, logits in self._compared(batch)
        ]
        return torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)

    def evaluate(self, held_out: Sequence[Exchange]) -> HeadHeldOut:
        total, matches, counts = 0.0, [0] * self._places, [0] * self._places
        for exchange in held_out:
            for place, (wanted, expected, mass, logits) in enumerate(self._compared([exchange])):
                if place == 0:
                    total += float((mass * divergences(expected, logits, "forward-kl")).sum())
                drafted = logits.argmax(-1) if self._tokens is None else self._tokens[logits.argmax(-1)]
                matches[place] += int((drafted == wanted).sum())
                counts[place] += len(drafted)
        shares = tuple(right / count if count else math.nan for right, count in zip(matches, counts, strict=True))
        return HeadHeldOut(total / max(1, counts[0]), shares[0], shares)

    def _compared(
        self, batch: Sequence[Exchange]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """For each place of the chains: the predictions of both for the tokens of answers.

        Yields:
            The model's likeliest token, int64 [n]; its logits [n, draft_vocab_size] of the tokens that the head can
            propose; their probability together, [n]; and the head's logits, [n, draft_vocab_size].
        """
        ids, is_wanted = (tensor.to(self._teacher.device) for tensor in padded(batch))
        with torch.no_grad():
            states, last = self._observed(ids)
            whole = self._teacher.lm_head(last[is_wanted]).float()
            embedded = self._teacher.get_input_embeddings()(ids)
            likeliest = whole.argmax(-1)
            proposable = whole if self._tokens is None else whole[:, self._tokens]
            mass = (proposable.logsumexp(-1) - whole.logsumexp(-1)).exp()
        row_of = torch.zeros_like(ids).masked_scatter_(is_wanted, torch.arange(len(whole), device=ids.device))
        for place, outputs in enumerate(self.student(states, embedded, self._places)):
            first = place + 1  # the chain at i drafts what follows token i + place + 1
            is_here = is_wanted[:, first:]
            rows = row_of[:, first:][is_here]
            logits = self.student.lm_head(outputs[:, : is_here.shape[1]][is_here])
            yield likeliest[rows], proposable[rows], mass[rows], logits

    def _observed(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's hidden states at the head's depths, and its last ones after the final norm."""
        observed: dict[int, torch.Tensor] = {}

        def listen(index: int) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]:
            def on_input(_: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:  # noqa: ANN401
                observed[index] = (inputs[0] if inputs else named["hidden_states"]).detach().clone()

            return on_input

        model = self._teacher.model
        with contextlib.ExitStack() as hooks:
            for index, module in enumerate([*model.layers, model.norm]):
                if index in self._layers:
                    handle = module.register_forward_pre_hook(listen(index), with_kwargs=True)
                    hooks.callback(handle.remove)
            last = model(input_ids=ids, use_cache=False).last_hidden_state
        return torch.cat([observed[index] for index in self._layers], dim=-1), last
