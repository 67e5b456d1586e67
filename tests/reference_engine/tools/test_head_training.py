"""A head learns to draft, an interrupted training ends with the bits of one that was not, and its files load."""

import json
import math
import signal

import pytest
import torch

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.safetensors import SafetensorsFiles, read_config
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.tools.head_training import (
    HeadLesson,
    HeadTraining,
    frequent_tokens,
    head_config,
    train_head,
)
from bakeoff.reference_engine.tools.teacher_text import Exchange
from bakeoff.reference_engine.tools.training import divergences, logits_of
from tests.reference_engine.eagle_heads import random_head
from tests.reference_engine.tools.test_distillation import Clock

PROMPTS = "".join(f"hello world, said hero number {number}\n" for number in range(20))
SETTINGS = {
    "steps": 4, "batch_tokens": 256, "text_tokens": 100, "answer_tokens": 12, "save_steps": 2, "learning_rate": 3e-3,
    "places": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text(PROMPTS)
    return file


@pytest.fixture
def train(checkpoint_dir, text):
    def run(target, *, model=checkpoint_dir, clock=None, say=lambda _: None, **settings):
        chosen = HeadTraining(**(SETTINGS | settings))
        return train_head(model, target, chosen, text=text, device="cpu", say=say, clock=clock or Clock())

    return run


def share_accepted(model, head):
    """The share of accepted drafts in greedy answers to two of the prompts."""
    drafted, accepted = [], []
    settings = {"dtype": "float32", "device": "cpu", "threads": 1, "num_blocks": 64, "adaptive_speculation": False}
    with LLM(model, speculation=f"eagle:2:{head}", **settings) as llm:
        step = llm.engine.step

        def counted():
            report = step()
            drafted.append(sum(report.drafted))
            accepted.append(sum(report.accepted))
            return report

        llm.engine.step = counted
        words = [{"role": "user", "content": PROMPTS.splitlines()[number]} for number in (3, 4)]
        tokenizer = open_checkpoint(model).tokenizer
        chats = [tokenizer.render_chat([message], add_generation_prompt=True) for message in words]
        prompts = [tokenizer.encode(chat, add_special_tokens=False) for chat in chats]
        llm.generate(prompts, SamplingParams(max_tokens=12, temperature=0.0))
    return sum(accepted) / sum(drafted)


def test_a_trained_head_is_right_more_often_than_a_random_one(train, tmp_path, make_model, save_checkpoint):
    """Small weights make a model that soon repeats itself."""
    (tmp_path / "model").mkdir()
    model = save_checkpoint(tmp_path / "model", make_model(initializer_range=0.15, hidden_size=32))
    lines = []
    settings = {"steps": 20, "save_steps": 10, "text_tokens": 300, "learning_rate": 1e-2, "temperature": 0.0}
    result = train(tmp_path / "head", model=model, say=lines.append, **settings)
    rows = [json.loads(line) for line in (tmp_path / "head/training.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(21))
    assert [row["step"] for row in rows if row["acceptance"] is not None] == [0, 10, 20]
    assert result.kl == rows[-1]["held_out_kl"] < 0.5 * rows[0]["held_out_kl"]
    assert rows[-1]["acceptance_by_place"] == list(result.by_place)
    assert result.by_place[1] > 2 * rows[0]["acceptance_by_place"][1]
    by_chance = share_accepted(model, random_head(tmp_path / "random", model))
    assert share_accepted(model, tmp_path / "head") > 0.2 > 2 * by_chance
    assert lines[-1].startswith(f"wrote {tmp_path / 'head'}: held-out KL ")


@pytest.mark.usefixtures("_default_interrupts")
def test_ctrl_c_saves_and_the_same_command_ends_with_the_same_bits(train, tmp_path, checkpoint_dir):
    whole, halves, lines = tmp_path / "whole", tmp_path / "halves", []
    train(whole, draft_vocab=50)
    with pytest.raises(KeyboardInterrupt):
        train(halves, draft_vocab=50, clock=Clock(8, lambda: signal.raise_signal(signal.SIGINT)), say=lines.append)
    assert lines[-1].startswith("saved after step ")
    with pytest.raises(ConfigError, match="unfinished work with --draft-vocab 50, not 0;"):
        train(halves)
    train(halves, draft_vocab=50)
    assert (halves / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert sorted(path.name for path in whole.iterdir()) == [
        "config.json", "model.safetensors", "training.json", "training.jsonl",
    ]  # fmt: skip
    source = SafetensorsFiles(whole)
    assert source.get("lm_head.weight").shape[0] == int(source.get("t2d").sum()) == 50
    embedding = SafetensorsFiles(checkpoint_dir).get("model.embed_tokens.weight")
    assert torch.equal(source.get("embed_tokens.weight"), embedding)
    verifier = json.loads((whole / "config.json").read_text())["speculators_config"]["verifier"]
    assert verifier["name_or_path"] == str(checkpoint_dir.resolve())


def test_tokens_to_propose_are_those_of_answers_most_often():
    text = [Exchange([9, 9, 9, 4, 7, 7], 3), Exchange([1, 5, 7, 4, 2], 1)]
    assert frequent_tokens(text, 3, 12).tolist() == [2, 4, 7]  # of 2 and 5 the lower one
    assert frequent_tokens(text, 0, 12) is frequent_tokens(text, 12, 12) is None


def test_the_loss_is_over_what_the_head_can_propose(hf_model, checkpoint_dir):
    """Both sides from the definition: the model's probabilities, of chains that begin in a prompt or later."""
    model = head_config(read_config(checkpoint_dir), 40)
    tokens = torch.arange(5, 45)

    class Silent(torch.nn.Module):
        """A head with equal logits for all tokens."""

        device = torch.device("cpu")

        def forward(self, states, embedded, places):
            assert states.shape[-1] == 3 * embedded.shape[-1]
            return [torch.zeros_like(embedded)] * places

        def lm_head(self, rows):
            return torch.zeros(len(rows), 40)

    batch = [Exchange([5, 6, 7, 8, 9, 10, 30], 2), Exchange([11, 12, 13], 1)]
    lesson = HeadLesson(hf_model, Silent(), model, tokens, places=2)
    with torch.no_grad():
        loss, measured = float(lesson.loss(batch)), lesson.evaluate(batch)
        rows = [logits_of(hf_model, [sample]) for sample in batch]
    by_place = []
    # At place k the tokens of an answer have a chain that begins k + 1 tokens before what they follow from.
    for first in (0, 1):
        rows_behind = [row[max(0, first + 2 - sample.prompt_len) :] for row, sample in zip(rows, batch, strict=True)]
        logits = torch.cat(rows_behind).double()
        shares = logits.softmax(-1)[:, tokens]
        mass = shares.sum(-1)
        entropy = (shares / mass[:, None] * (shares / mass[:, None]).log()).sum(-1)
        by_place.append(float((mass * (entropy + math.log(40))).mean()))
    assert loss == pytest.approx((by_place[0] + 0.8 * by_place[1]) / 1.8, rel=1e-4)
    assert measured.kl == pytest.approx(by_place[0], rel=1e-4)
    assert measured.acceptance == measured.by_place[0]
    equal = divergences(torch.zeros(1, 40), torch.zeros(1, 40), "forward-kl")
    assert float(equal) == pytest.approx(0.0, abs=1e-6)


MISTAKES = {
    "--places 17": "--places must be 1 to 16, not 17",
    "--draft-vocab -1": "--draft-vocab must be at least 0, not -1",
    "--draft-vocab 267": "--draft-vocab 267 is more than the model's 266 tokens",
    "--steps 0": "--steps must be at least 1, not 0",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(capsys, tmp_path, checkpoint_dir, text, line):
    words = ["eagle", checkpoint_dir, "--text", text, "--out", tmp_path / "out", "--device", "cpu", *line.split()]
    assert main([str(word) for word in words]) == 2
    errors = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error: ")]
    assert len(errors) == 1
    assert MISTAKES[line] in errors[0]
    assert not (tmp_path / "out").exists()
