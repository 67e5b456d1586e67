"""A student gets closer to its teacher, and an interrupted training ends with the bits of one that was not."""

import json
import math
import signal
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.tools import distillation as module
from bakeoff.reference_engine.tools import teacher_text
from bakeoff.reference_engine.tools.distillation import Distillation, distil
from bakeoff.reference_engine.tools.progress import Progress
from bakeoff.reference_engine.tools.pruning import Pruning, prune
from bakeoff.reference_engine.tools.teacher_text import Exchange
from bakeoff.reference_engine.tools.training import Batches, divergences, learning_rate, logits_of

PROMPTS = "".join(f"hello world, said hero number {number}\n" for number in range(100))
SETTINGS = {
    "steps": 6, "batch_tokens": 256, "text_tokens": 100, "answer_tokens": 12, "save_steps": 2, "learning_rate": 3e-3,
}  # fmt: skip


class Clock:
    """Advances one second at each reading, and calls ``action`` at the reading ``at``."""

    def __init__(self, at=None, action=None):
        self.now_s, self.at, self.action = 0.0, at, action

    def __call__(self):
        self.now_s += 1
        if self.now_s == self.at:
            self.action()
        return self.now_s


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text(PROMPTS)
    return file


@pytest.fixture(scope="module")
def student_dir(tmp_path_factory, checkpoint_dir, text):
    target = tmp_path_factory.mktemp("student") / "small"
    prune(checkpoint_dir, target, Pruning(layers=1, weights=0.75), text=text, device="cpu", say=lambda _: None)
    return target


@pytest.fixture
def train(checkpoint_dir, student_dir, text):
    def run(target, *, teacher=checkpoint_dir, student=student_dir, clock=None, say=lambda _: None, **settings):
        chosen = Distillation(**(SETTINGS | settings))
        return distil(teacher, student, target, chosen, text=text, device="cpu", say=say, clock=clock or Clock())

    return run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, checkpoint_dir, student_dir, text):
    target = tmp_path_factory.mktemp("whole") / "draft"
    settings, lines = Distillation(**SETTINGS, trim_vocabulary=60), []
    distil(checkpoint_dir, student_dir, target, settings, text=text, device="cpu", say=lines.append, clock=Clock())
    assert any(line.startswith("drafts 60 of 266 tokens, which are ") for line in lines)
    return target


def weights(directory):
    return (directory / "model.safetensors").read_bytes()


def rows(directory):
    return [json.loads(line) for line in (directory / "distillation.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("loss", ["forward-kl", "reverse-kl"])
def test_the_student_gets_closer_on_text_that_it_does_not_learn_from(
    train, tmp_path, make_model, save_checkpoint, text, loss
):
    (tmp_path / "teacher").mkdir()
    # Weights this small make a teacher whose distributions a single layer can learn.
    teacher = save_checkpoint(tmp_path / "teacher", make_model(initializer_range=0.15, hidden_size=32))
    student, lines = tmp_path / "student", []
    prune(teacher, student, Pruning(layers=1), text=text, device="cpu", say=lines.append)
    wanted = {"steps": 40, "save_steps": 20, "text_tokens": 1000, "loss": loss}
    result = train(tmp_path / "draft", teacher=teacher, student=student, say=lines.append, **wanted)
    logged = rows(tmp_path / "draft")
    assert [row["step"] for row in logged] == list(range(41))
    assert [row["step"] for row in logged if row["held_out_kl"] is not None] == [0, 20, 40]
    assert logged[0]["loss"] is None
    assert result.kl == logged[-1]["held_out_kl"] < 0.5 * logged[0]["held_out_kl"]
    assert logged[-1]["acceptance"] > 2 * logged[0]["acceptance"]
    assert all(row["tokens_per_s"] > 0 for row in logged[1:])
    assert any(line.startswith("step 20 of 40, loss ") and line.endswith(" left") for line in lines)
    assert lines[-1].startswith(f"wrote {tmp_path / 'draft'}: held-out KL ")


def test_the_result_is_a_checkpoint_of_the_students_shape(uninterrupted, student_dir):
    assert sorted(path.name for path in uninterrupted.iterdir()) == [
        "config.json", "distillation.json", "distillation.jsonl", "draft_vocabulary.json", "generation_config.json",
        "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert (uninterrupted / "config.json").read_bytes() == (student_dir / "config.json").read_bytes()
    before, after = SafetensorsDirectory(student_dir), SafetensorsDirectory(uninterrupted)
    assert sorted(before.names()) == sorted(after.names())
    assert not torch.equal(before.get("model.norm.weight"), after.get("model.norm.weight"))
    zeros = [before.get(name) == 0 for name in before.names() if name.endswith("_proj.weight")]
    zeros_after = [after.get(name) == 0 for name in before.names() if name.endswith("_proj.weight")]
    assert all(torch.equal(*pair) for pair in zip(zeros, zeros_after, strict=True))
    assert AutoModelForCausalLM.from_pretrained(uninterrupted).config.num_hidden_layers == 1


def test_the_students_vocabulary_is_what_the_teacher_writes(train, uninterrupted, tmp_path):
    with pytest.raises(OSError, match="power"):
        train(tmp_path / "draft", clock=Clock(4, crash))
    chunks = [json.loads(line) for line in (tmp_path / "draft/training/text.jsonl").read_text().splitlines()]
    counts = Counter(
        token for chunk in chunks[1:] for sample in chunk for token in sample["token_ids"][sample["prompt_len"] :]
    )
    kept_ids = json.loads((uninterrupted / "draft_vocabulary.json").read_text())["kept_token_ids"]
    assert len(kept_ids) == 60
    assert set(kept_ids) >= {0, 1, 2} | {token for token, _ in counts.most_common(50)}


def test_the_student_drafts_for_its_teacher(uninterrupted, checkpoint_dir):
    settings = {"dtype": "float32", "device": "cpu", "threads": 1, "num_blocks": 64}
    wanted = SamplingParams(max_tokens=12, temperature=0.0)
    answers = []
    for speculation in ("", f"draft:3:{uninterrupted}"):
        with LLM(checkpoint_dir, speculation=speculation, **settings) as model:
            answers.append(model.generate(["hello world"], wanted)[0].completions[0].token_ids)
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("_default_interrupts")
@pytest.mark.parametrize("look", [6, 12, 18], ids=["first step", "second save", "last step"])
def test_ctrl_c_saves_and_the_same_command_ends_with_the_same_bits(train, uninterrupted, tmp_path, look):
    target, lines = tmp_path / "draft", []
    with pytest.raises(KeyboardInterrupt):
        train(target, clock=Clock(look, lambda: signal.raise_signal(signal.SIGINT)), say=lines.append)
    assert lines[-1].startswith("saved after step ")
    assert not (target / "config.json").exists()
    train(target, say=lines.append)
    assert any(line.startswith("goes on after step ") for line in lines)
    assert weights(target) == weights(uninterrupted)
    assert [row | {"tokens_per_s": 0} for row in rows(target)] == [
        row | {"tokens_per_s": 0} for row in rows(uninterrupted)
    ]


def crash():
    raise OSError("power")


@pytest.mark.parametrize("look", [4, 10, 15])
def test_after_a_crash_it_goes_on_from_the_last_saved_state(train, uninterrupted, tmp_path, look):
    target = tmp_path / "draft"
    with pytest.raises(OSError, match="power"):
        train(target, clock=Clock(look, crash))
    with (target / "distillation.jsonl").open("a") as file:
        file.write('{"step": 5, "los')
    train(target, save_steps=3 if look == 4 else 2)
    assert weights(target) == weights(uninterrupted)
    assert [row["step"] for row in rows(target)] == list(range(7))


def test_text_that_was_cut_off_is_written_again(train, uninterrupted, tmp_path, monkeypatch):
    target, opened = tmp_path / "draft", []
    with pytest.raises(OSError, match="power"):
        train(target, clock=Clock(4, crash))
    text = target / "training/text.jsonl"
    whole = text.read_bytes()
    first = whole.index(b"\n") + 1
    text.write_bytes(whole[: first + 40])
    monkeypatch.setattr(teacher_text, "LLM", lambda *given, **named: opened.append(given) or LLM(*given, **named))
    train(target)
    assert len(opened) == 1
    assert weights(target) == weights(uninterrupted)


@pytest.mark.usefixtures("_default_interrupts")
def test_ctrl_c_of_the_process_is_status_130(monkeypatch, tmp_path, checkpoint_dir, student_dir, text):
    taken = Batches.take

    def interrupted(batches):
        signal.raise_signal(signal.SIGINT)
        return taken(batches)

    monkeypatch.setattr(Batches, "take", interrupted)
    words = ["distil", checkpoint_dir, student_dir, "--out", tmp_path / "draft", "--text", text, "--device", "cpu"]
    words += [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert main([str(word) for word in words]) == 130
    assert (tmp_path / "draft/training/state.pt").exists()


def test_losses_are_the_two_divergences():
    teacher, student = torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([[0.0, 0.0]])
    p, q = (0.25, 0.75), (0.5, 0.5)
    forward = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    reverse = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert divergences(teacher, student, "forward-kl").tolist() == pytest.approx([forward])
    assert divergences(teacher, student, "reverse-kl").tolist() == pytest.approx([reverse])


def test_logits_are_those_before_each_token_of_the_answers(hf_model):
    long, short = Exchange([5, 6, 7, 8, 9, 10], 2), Exchange([11, 12, 13], 1)
    with torch.inference_mode():
        logits = logits_of(hf_model, [long, short])
        alone = [hf_model(input_ids=torch.tensor([sample.token_ids])).logits[0] for sample in (long, short)]
    torch.testing.assert_close(logits, torch.cat([alone[0][1:5], alone[1][0:2]]))


def test_batches_hold_all_text_once_a_round_within_their_tokens():
    exchanges = [Exchange([number] * (3 + number % 5), 1) for number in range(20)]
    batches = Batches(exchanges, 16, seed=1)
    first_ids = []
    while len(first_ids) < 40:
        batch = batches.take()
        assert 0 < len(batch) * max(len(sample.token_ids) for sample in batch) <= 16
        first_ids += [sample.token_ids[0] for sample in batch]
    assert sorted(first_ids[:20]) == sorted(first_ids[20:40]) == list(range(20))
    assert first_ids[:20] != first_ids[20:40]


def test_the_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 1.0) for step in range(1, 101)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate(1, 1, 0.5) == 0.5


def test_progress_says_how_long_it_takes_at_most_every_ten_seconds():
    lines, clock = [], Clock()
    progress = Progress(lines.append, "step", 100, 7300, clock)
    for step in range(101, 113):
        progress.advance(step, ", x")
    progress.advance(113, is_due=True)
    assert lines == ["step 110 of 7,300, x, about 1:59:50 left", "step 113 of 7,300, about 1:59:47 left"]


MISTAKES = {
    "--steps 0": "--steps must be at least 1, not 0",
    "--save-steps 0": "--save-steps must be at least 1, not 0",
    "--learning-rate 0": "--learning-rate must be above 0 and at most 1, not 0.0",
    "--temperature -1": "--temperature and --seed must be at least 0",
    "--trim-vocabulary 2": "a trimmed vocabulary of this model has 3 tokens, the special ones, to 266, not 2",
    "--answer-tokens 256": "--answer-tokens 256 leaves no room for a prompt in 256 tokens",
    "--batch-tokens 8": "--answer-tokens 12 leaves no room for a prompt in 8 tokens",
    "--text ONE": "a text of 1 different lines has too few prompts",
    "--text NONE": "cannot be read as UTF-8 text",
    "--out STUDENT": "is already a checkpoint; give a new directory",
    "--out OTHER": "is neither empty nor holds unfinished training; give a new directory",
    "--out ONE": "is a file; give a directory",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(capsys, tmp_path, checkpoint_dir, student_dir, text, line):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    (tmp_path / "one").write_text("hello\n\nhello\n")
    places = {
        "ONE": tmp_path / "one", "NONE": tmp_path / "none", "OTHER": tmp_path / "other", "STUDENT": student_dir,
    }  # fmt: skip
    words = ["distil", checkpoint_dir, student_dir, "--text", text, "--out", tmp_path / "out", "--device", "cpu"]
    words += ["--answer-tokens", 12, *(places.get(word, word) for word in line.split())]
    assert main([str(word) for word in words]) == 2
    errors = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error: ")]
    assert len(errors) == 1
    assert MISTAKES[line] in errors[0]
    assert not (tmp_path / "out").exists()


def test_an_unfinished_run_goes_on_with_its_own_settings_only(train, tmp_path, checkpoint_dir, student_dir):
    target = tmp_path / "draft"
    with pytest.raises(OSError, match="power"):
        train(target, clock=Clock(4, crash))
    with pytest.raises(module.ConfigError, match=r"unfinished work with --learning-rate 0\.003, not 0\.1;"):
        train(target, learning_rate=0.1)
    (tmp_path / "other.txt").write_text("another\ntext\n")
    settings = Distillation(**SETTINGS)
    with pytest.raises(module.ConfigError, match="unfinished work with another text; give the same"):
        distil(
            checkpoint_dir, student_dir, target, settings,
            text=tmp_path / "other.txt", device="cpu", say=lambda _: None, clock=Clock(),
        )  # fmt: skip


def test_pairs_that_do_not_fit_are_refused(train, tmp_path, checkpoint_dir, make_model, save_checkpoint, text):
    (tmp_path / "wide").mkdir()
    wide = save_checkpoint(tmp_path / "wide", make_model(vocab_size=300))
    settings = Distillation(**SETTINGS)
    with pytest.raises(module.ConfigError, match="has logits for 300 tokens, the teacher for"):
        distil(checkpoint_dir, wide, tmp_path / "out", settings, text=text, device="cpu", say=lambda _: None)
    tokenizer = json.loads((wide / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (wide / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(module.ConfigError, match="has another tokenizer than"):
        distil(checkpoint_dir, wide, tmp_path / "out", settings, text=text, device="cpu", say=lambda _: None)
