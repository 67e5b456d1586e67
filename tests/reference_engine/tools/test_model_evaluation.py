"""`evaluate` of a model and of a perturbed one, against torch's own arithmetic over the same tokens."""

import json
import math

import msgspec
import pytest
import torch
from tokenizers import processors
from torch.nn.functional import cross_entropy

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.tools import model_evaluation
from bakeoff.reference_engine.tools.evaluation_input import TokenSequence, pieces_of, questions_of
from bakeoff.reference_engine.tools.evaluator import NEAR_TIE_NATS
from bakeoff.reference_engine.tools.model_evaluation import EvaluationConfig, evaluate
from tests.reference_engine.conftest import make_tokenizer

TEXT = "hello world, or else: the lower yellow bellows were told so. " * 9
QUESTIONS = [
    {"question": "hello", "choices": ["world", "or", "yellow bellows"], "answer": 1, "source": "made up"},
    {"question": "tell me\n", "choices": ["a", "b"], "answer": 0},
]


@pytest.fixture
def tokenizer():
    return Tokenizer(make_tokenizer(), {}, None)


@pytest.fixture
def run(checkpoint_dir, tmp_path):
    """`run(**changes)`: the lines of an evaluation of the tiny model in float32; `model` has further settings."""
    (tmp_path / "text").write_text(TEXT)

    def lines(model=None, **changes):
        settings = {"model": str(checkpoint_dir), "dtype": "float32", "device": "cpu", "threads": 1} | (model or {})
        config = EngineConfig(**settings, max_num_seqs=1, enable_prefix_caching=False)
        settings = {"text": tmp_path / "text", "max_tokens": 400} | changes
        header, *rest = evaluate(EvaluationConfig(config, **settings))
        assert header.pieces + header.questions == len(rest)
        return header, rest

    return lines


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return path


@pytest.fixture(scope="module")
def perturbed(make_model):
    """A slightly perturbed copy of `hf_model`."""
    model = make_model()
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


@pytest.fixture(scope="module")
def perturbed_dir(perturbed, save_checkpoint, tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("perturbed"), perturbed)


@torch.inference_mode()
def logprobs_of(model, ids):
    """Transformers' log-probabilities of successors, [length - 1, vocabulary]."""
    return model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)


def pieces(tokens=400, length=256):
    ids = make_tokenizer().encode(TEXT).ids[:tokens]
    return [ids[start : start + length] for start in range(0, len(ids), length)]


def test_nats_are_those_of_torch_piece_by_piece(run, hf_model):
    header, lines = run()
    assert (header.dtype, header.kv_cache_dtype, header.device) == ("float32", "auto", "cpu")
    for line, ids in zip(lines, pieces(), strict=True):
        expected = float(cross_entropy(logprobs_of(hf_model, ids), torch.tensor(ids[1:]), reduction="sum"))
        assert line.tokens == len(ids) - 1
        assert line.nats == line.reference_nats == pytest.approx(expected, rel=1e-5)
        best = logprobs_of(hf_model, ids).argmax(-1)
        assert line.hits == int((best == torch.tensor(ids[1:])).sum())


def test_without_a_reference_there_are_tokens_alone_and_room_for_one_more(run, monkeypatch, questions):
    served, expected = run(for_server=True, choices=questions)
    monkeypatch.setattr(model_evaluation, "PerplexityMeter", None)  # nothing is computed
    header, lines = run(tokens_only=True, choices=questions)
    assert [line.ids for line in lines] == [line.ids for line in expected]
    assert max(len(line.ids) for line in lines[:2]) == 255  # of 256 that the model takes
    assert [(line.reference_nats, line.likeliest) for line in lines[:-2]] == [(None, None)] * (len(lines) - 2)
    assert lines[-2:] == expected[-2:]
    assert (header.tokens_sha256, header.text_sha256) == (served.tokens_sha256, served.text_sha256)
    assert run(tokens_only=True, max_tokens=399)[0].tokens_sha256 != header.tokens_sha256


def test_a_model_does_not_differ_from_itself(run):
    for line in run()[1]:
        assert (line.kl_nats, line.matches, line.near_ties) == (0.0, line.tokens, 0)


def test_a_perturbed_model_differs_by_what_torch_says(run, hf_model, perturbed, perturbed_dir):
    _, lines = run({"model": str(perturbed_dir)}, reference=hf_path(hf_model, perturbed_dir.parent))
    for line, ids in zip(lines, pieces(), strict=True):
        q, p = logprobs_of(perturbed, ids).double(), logprobs_of(hf_model, ids).double()
        assert line.kl_nats == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-4)
        regrets = p.max(-1).values - p.gather(1, q.argmax(-1)[:, None])[:, 0]
        assert line.matches == int((regrets == 0).sum()) < line.tokens
        assert line.near_ties == int(((regrets > 0) & (regrets < NEAR_TIE_NATS)).sum()) > 0
        assert line.reference_nats != line.nats


def hf_path(model, folder):
    model.save_pretrained(folder / "original")
    make_tokenizer().save(str(folder / "original" / "tokenizer.json"))
    return folder / "original"


def test_bfloat16_and_a_rounded_cache_differ_from_the_same_weights_a_little(run):
    header, lines = run({"dtype": "bfloat16"})
    assert header.dtype == "bfloat16"
    assert all(0 < line.kl_nats / line.tokens < 0.05 for line in lines)
    header, lines = run({"kv_cache_dtype": "int8"})
    assert header.kv_cache_dtype == "int8"
    assert all(0 < line.kl_nats / line.tokens < 0.05 for line in lines)


def test_choices_are_scored_as_by_hand(run, questions, hf_model):
    _, lines = run(max_tokens=20, choices=questions)
    tokenizer = make_tokenizer()
    for line, question, separator in zip(lines[1:], QUESTIONS, (" ", ""), strict=True):
        assert line.answer == question["answer"]
        assert line.num_bytes == [len(choice) for choice in question["choices"]]
        for choice, logprob in zip(question["choices"], line.logprobs, strict=True):
            question_ids = tokenizer.encode(question["question"]).ids
            ids = tokenizer.encode(question["question"] + separator + choice).ids
            assert ids[: len(question_ids)] == question_ids
            rows = logprobs_of(hf_model, ids)[len(question_ids) - 1 :]
            expected = float(rows.gather(1, torch.tensor(ids[len(question_ids) :])[:, None]).sum())
            assert logprob == pytest.approx(expected, rel=1e-5)
    assert [line.line for line in lines[1:]] == [1, 2]


def test_a_token_across_the_boundary_is_the_choices(tokenizer, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "x ", "choices": ["world", "9"], "answer": 0}')
    (question,) = questions_of(tokenizer, path, 99)
    alone, merged = tokenizer.encode("x "), tokenizer.encode("x world")
    assert alone[:1] == merged[:1]
    assert alone[1] != merged[1]  # the space became part of a word
    assert question.choices[0] == TokenSequence(merged, 0)
    assert question.choices[1] == TokenSequence(tokenizer.encode("x 9"), 1)


def test_the_tokens_before_every_text_begin_every_piece_and_are_not_predicted(tokenizer):
    assert [(len(piece.ids), piece.first) for piece in pieces_of(tokenizer, TEXT, 45, 20)] == [(20, 0), (20, 0), (5, 0)]
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    begun = pieces_of(tokenizer, TEXT, 45, 20)
    assert [(piece.ids[0], len(piece.ids), piece.first) for piece in begun] == [(1, 20, 0), (1, 20, 0), (1, 8, 0)]
    assert sum(len(piece.ids) - 1 for piece in begun) == 45
    assert [i for piece in begun for i in piece.ids[1:]] == make_tokenizer().encode(TEXT).ids[:45]


def test_for_a_server_the_reference_names_its_likeliest_tokens(run, questions, hf_model):
    header, lines = run({"dtype": "bfloat16"}, choices=questions, for_server=True)
    assert header.dtype == "float32"
    for line, ids in zip(lines, pieces(length=255), strict=False):  # a server adds a token to 256 at most
        p = logprobs_of(hf_model, ids)
        assert (line.ids, line.first) == (ids, 0)
        assert line.reference_nats == pytest.approx(-float(p.gather(1, torch.tensor(ids[1:])[:, None]).sum()), rel=1e-5)
        assert [tokens[0] for tokens in line.likeliest] == p.argmax(-1).tolist()
        near = (p > p.max(-1, keepdim=True).values - NEAR_TIE_NATS).sum(-1)
        assert [len(tokens) for tokens in line.likeliest] == near.tolist()
        assert near.max() > 1
    question_line = lines[-2]
    assert [tokens[first + 1 :] for tokens, first in zip(question_line.ids, question_line.first, strict=True)] == [
        make_tokenizer().encode(" " + choice).ids for choice in QUESTIONS[0]["choices"]
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "line 2 is not a question: JSON is malformed"),
        ("", "line 2 is not a question: Input data was truncated"),
        ('{"question": "a", "choices": ["b", "c"]}', "line 2 is not a question: .*missing required field `answer`"),
        ('{"question": "a", "choices": ["b"], "answer": 0}', "line 2 is not a question: it needs two or more choices"),
        ('{"question": "a", "choices": ["b", " "], "answer": 0}', "two or more choices that are not empty"),
        ('{"question": "a", "choices": ["b", "c"], "answer": 2}', "answer 2 is not the index of one of 2 choices"),
        ('{"question": "a", "choices": ["b", "c"], "answer": -1}', "answer -1 is not the index"),
        ('{"question": "", "choices": ["b", "c"], "answer": 0}', "line 2: the question has no token before"),
        ('{"question": "abcdefghij", "choices": ["b", "c"], "answer": 0}', "line 2: .* are 12 tokens, .* takes 10"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(tokenizer, tmp_path, line, complaint):
    path = tmp_path / "questions.jsonl"
    path.write_text(f'{{"question": "a", "choices": ["b", "c"], "answer": 0}}\n{line}\n')
    with pytest.raises(RequestError, match=f"^{path}, .*{complaint}"):
        questions_of(tokenizer, path, 10)


def test_what_cannot_be_evaluated_is_refused(run, make_model, save_checkpoint, tmp_path, tokenizer):
    with pytest.raises(RequestError, match="--max-tokens must be at least 2, not 1"):
        run(max_tokens=1)
    with pytest.raises(RequestError, match="a text of 1 tokens has nothing to predict; give a longer --text"):
        pieces_of(tokenizer, "a", 10)
    with pytest.raises(RequestError, match="none cannot be read as UTF-8 text"):
        run(choices=tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(RequestError, match="empty is empty; give a line of JSON per question"):
        run(choices=tmp_path / "empty")
    (tmp_path / "wider").mkdir()
    wider = save_checkpoint(tmp_path / "wider", make_model(vocab_size=300, num_hidden_layers=1))
    with pytest.raises(RequestError, match=r"wider has another tokenizer or vocabulary size than .*; give --reference"):
        run(reference=wider)
    merged = json.loads((wider / "tokenizer.json").read_text())
    merged["model"]["merges"] = merged["model"]["merges"][:3]
    (tmp_path / "other").mkdir()
    other = save_checkpoint(tmp_path / "other", make_model(num_hidden_layers=1))
    (other / "tokenizer.json").write_text(json.dumps(merged))
    with pytest.raises(RequestError, match="other has another tokenizer"):
        run(reference=other)


def test_logits_that_are_not_finite_are_named(run, make_model, save_checkpoint, tmp_path):
    model = make_model(num_hidden_layers=1)
    with torch.no_grad():
        model.model.norm.weight.fill_(math.inf)
    with pytest.raises(RequestError, match="the model's logits are not finite in float32; give another --dtype"):
        run({"model": str(save_checkpoint(tmp_path, model))})


def test_the_command_prints_json_lines(checkpoint_dir, questions, tmp_path, capfdbinary):
    (tmp_path / "text").write_text(TEXT)
    words = ["evaluate", "--model", str(checkpoint_dir), "--text", str(tmp_path / "text"), "--max-tokens", "99"]
    assert main([*words, "--choices", str(questions), "--device", "cpu", "--threads", "1"]) == 0
    lines = [msgspec.json.decode(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["header", "piece", "question", "question"]
    questions.write_text("{}")
    assert main([*words, "--choices", str(questions)]) == 2
    complaints = [line for line in capfdbinary.readouterr().err.splitlines() if line.startswith(b"error: ")]
    assert len(complaints) == 1
    assert b"questions.jsonl, line 1 is not a question" in complaints[0]
