"""The training loop of distillation: losses, batches, schedule, and a state from which it resumes bit for bit.

On a CPU with the same number of threads, an interrupted run ends with the same weights as an uninterrupted one.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch.nn.functional import kl_div
from torch.nn.utils import parametrize

from bakeoff.reference_engine.tools.checkpoint_folder import whole_file
from bakeoff.reference_engine.tools.importance import MATRICES
from bakeoff.reference_engine.tools.straight_through import plain_name
from bakeoff.reference_engine.tools.teacher_text import Exchange

LossName = Literal["forward-kl", "reverse-kl"]
_WARM_UP_SHARE = 0.05
_LAST_RATE = 0.1  # of the peak
_MOST_GRADIENT = 1.0  # norm


def divergences(teacher: torch.Tensor, student: torch.Tensor, loss: LossName) -> torch.Tensor:
    """Divergence of the distributions at each position.

    `forward-kl` is KL(teacher ‖ student), the cross-entropy with soft targets of Hinton et al. (arXiv 1503.02531) minus
    a constant: the student covers everything that the teacher may say. `reverse-kl` is KL(student ‖ teacher), the
    objective of MiniLLM (Gu et al., arXiv 2306.08543) and one of GKD's (Agarwal et al., arXiv 2306.13649), but at each
    position of the teacher's text instead of the student's: the student keeps to what the teacher finds likely.

    Args:
        teacher: logits [positions, vocab_size].
        student: logits of that shape.
        loss: name of the divergence.

    Returns:
        float32 [positions], nats.
    """
    p, q = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    if loss == "reverse-kl":
        p, q = q, p
    return kl_div(q, p, reduction="none", log_target=True).sum(-1)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Rate of a step from 1: linear warm-up over 5 % of the steps, then a cosine down to a tenth of the peak."""
    warm_up = max(1, round(steps * _WARM_UP_SHARE))
    if step <= warm_up:
        return peak * step / warm_up
    share = (step - warm_up) / (steps - warm_up)
    return peak * (_LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * share)) / 2)


def padded(exchanges: Sequence[Exchange]) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchanges as one batch; shorter ones are padded at their end, which no token before sees.

    Returns:
        Token ids, int64 [exchanges, longest]; and whether a token's successor is one of an answer, bool of that shape.
    """
    longest = max(len(exchange.token_ids) for exchange in exchanges)
    token_ids = torch.zeros(len(exchanges), longest, dtype=torch.int64)
    is_wanted = torch.zeros(len(exchanges), longest, dtype=torch.bool)
    for row, exchange in enumerate(exchanges):
        token_ids[row, : len(exchange.token_ids)] = torch.tensor(exchange.token_ids)
        is_wanted[row, exchange.prompt_len - 1 : len(exchange.token_ids) - 1] = True
    return token_ids, is_wanted


def logits_of(model: Any, exchanges: Sequence[Exchange]) -> torch.Tensor:  # noqa: ANN401 (see load_model)
    """Logits [answer tokens, vocab_size] for the tokens of all answers."""
    token_ids, is_wanted = padded(exchanges)
    hidden = model.model(input_ids=token_ids.to(model.device), use_cache=False).last_hidden_state
    return model.lm_head(hidden[is_wanted.to(model.device)])


class Batches:
    """Endless batches of exchanges, in a new random order for each round.

    Args:
        exchanges: at least one.
        batch_tokens: maximum tokens of a batch with its padding; no exchange is longer.
        seed: for the orders.
    """

    def __init__(self, exchanges: Sequence[Exchange], batch_tokens: int, seed: int) -> None:
        self._exchanges, self._batch_tokens = exchanges, batch_tokens
        self._generator = torch.Generator().manual_seed(seed)
        self._order, self._position = list[int](), 0

    def take(self) -> list[Exchange]:
        """The next batch."""
        batch: list[Exchange] = []
        longest = 0
        while True:
            if self._position == len(self._order):
                self._order = torch.randperm(len(self._exchanges), generator=self._generator).tolist()
                self._position = 0
            exchange = self._exchanges[self._order[self._position]]
            longest = max(longest, len(exchange.token_ids))
            if longest * (len(batch) + 1) > self._batch_tokens:
                return batch
            batch.append(exchange)
            self._position += 1

    def state(self) -> dict[str, Any]:
        """The current position, for `restore`."""
        return {"generator": self._generator.get_state(), "order": self._order, "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from the position of another one."""
        self._generator.set_state(state["generator"])
        self._order, self._position = state["order"], state["position"]


@dataclasses.dataclass(frozen=True, slots=True)
class HeldOut:
    """Measurements of the student on held-out text.

    Attributes:
        kl: mean KL(teacher ‖ student) per token, nats.
        acceptance: share of positions at which both have the same likeliest token. It estimates the share of drafts
            that are accepted at temperature 0.
    """

    kl: float
    acceptance: float

    def record(self) -> dict[str, Any]:
        """Its fields in a line of the record."""
        return {"held_out_kl": self.kl, "acceptance": self.acceptance}


class Lesson(Protocol):
    """A student's training objective and measurement. Callers decide on gradients and dtypes."""

    @property
    def student(self) -> Any:  # noqa: ANN401 (of Transformers, or a module of ours)
        """A module with a `device`; its parameters are float32."""
        ...

    def loss(self, batch: Sequence[Exchange]) -> torch.Tensor:
        """The scalar to minimise."""
        ...

    def evaluate(self, held_out: Sequence[Exchange]) -> HeldOut:
        """Measures the student on text that it is not trained on."""
        ...


class NextTokens:
    """The teacher's distribution at each token of its answers; a `Lesson`.

    Args:
        teacher: of Transformers; not changed.
        student: of Transformers, in float32 and on the same device.
        loss: to minimise, the mean over the tokens of answers.
    """

    def __init__(self, teacher: Any, student: Any, loss: LossName) -> None:  # noqa: ANN401 (see load_model)
        self._teacher, self.student = teacher, student
        self._loss: LossName = loss

    def loss(self, batch: Sequence[Exchange]) -> torch.Tensor:
        with torch.no_grad():
            expected = logits_of(self._teacher, batch)
        return divergences(expected, logits_of(self.student, batch), self._loss).mean()

    def evaluate(self, held_out: Sequence[Exchange]) -> HeldOut:
        total, matches, count = 0.0, 0, 0
        for exchange in held_out:
            expected, drafted = logits_of(self._teacher, [exchange]), logits_of(self.student, [exchange])
            total += float(divergences(expected, drafted, "forward-kl").sum())
            matches += int((expected.argmax(-1) == drafted.argmax(-1)).sum())
            count += exchange.answer_len
        return HeldOut(total / count, matches / count)


class Trainer:
    """Trains a student to predict as its teacher does.

    Weights of the layers' matrices that are zero at the start stay zero: unstructured pruning has removed them.

    Args:
        lesson: the training objective.
        batches: batches of the teacher's text.
        steps: number of steps of the whole training.
        peak: largest learning rate of AdamW.
        dtype: to compute in.
        seed: for dropout, if the student's config has any.
    """

    def __init__(
        self,
        lesson: Lesson,
        batches: Batches,
        *,
        steps: int,
        peak: float,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        self._lesson, self.student, self._batches = lesson, lesson.student, batches
        self._steps, self._peak = steps, peak
        self._dtype = dtype
        self._optimizer = torch.optim.AdamW(self.student.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
        self._zeros = _zeros(self.student)
        self.step: int | Any = 0
        torch.manual_seed(seed)

    def train_step(self) -> tuple[float, int]:
        """Makes one step; returns the loss before it, and the tokens of the batch."""
        self.step += 1
        batch = self._batches.take()
        self.student.train()
        with self._computing(), parametrize.cached():
            loss = self._lesson.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), _MOST_GRADIENT)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self._steps, self._peak)
        self._optimizer.step()
        self._optimizer.zero_grad()
        with torch.no_grad():
            for weight, is_zero in self._zeros:
                weight.masked_fill_(is_zero, 0)
        return float(loss.detach()), sum(len(exchange.token_ids) for exchange in batch)

    @torch.no_grad()
    def evaluate(self, held_out: Sequence[Exchange]) -> HeldOut:
        """Measures the student on text that it is not trained on."""
        self.student.eval()
        with self._computing(), parametrize.cached():
            return self._lesson.evaluate(held_out)

    def _computing(self) -> torch.autocast:
        return torch.autocast(self.student.device.type, self._dtype, enabled=self._dtype != torch.float32)

    def save(self, file: Path) -> None:
        """Writes the whole state atomically: the file is always either the old one or the new one."""
        state = {
            "step": self.step,
            "weights": self.student.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "batches": self._batches.state(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        with whole_file(file) as scratch:
            torch.save(state, scratch)

    def restore(self, file: Path) -> None:
        """Continues from a state that `save` wrote."""
        state = torch.load(file, map_location="cpu", weights_only=True)
        self.step = state["step"]
        self.student.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._batches.restore(state["batches"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])


def _zeros(student: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ANN401
    """Matrices of layers that contain zeros, with masks of the zeros."""
    names = tuple(f"{matrix}.weight" for matrix in MATRICES)
    matrices = [weight for name, weight in student.named_parameters() if plain_name(name).endswith(names)]
    return [(weight, weight == 0) for weight in matrices if bool((weight == 0).any())]
