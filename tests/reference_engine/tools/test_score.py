"""`score` of the engine's own answers, of damaged ones, and of invalid input."""

import io
import json
import os
import subprocess
import sys

import pytest
import torch

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.offline import generate, load_engine
from bakeoff.reference_engine.tools.convert import convert_gguf
from bakeoff.reference_engine.tools.evaluator import NEAR_TIE_NATS, Sample, Scorer
from tests.reference_engine.loading.test_gguf import write_gguf

PROMPTS = [[1, 20, 30, 40], [5] * 37, list(range(3, 63))]
LENGTH = 40
STOP = 2


@pytest.fixture(scope="module")
def scorer(checkpoint_dir):
    return Scorer(open_checkpoint(checkpoint_dir), "float32", "cpu")


@pytest.fixture(scope="module")
def answers(checkpoint_dir):
    return greedy(checkpoint_dir)


def greedy(folder, dtype="float32", **params):
    """The engine's own answer to each prompt, one request at a time."""
    engine = load_engine(EngineConfig(model=str(folder), dtype=dtype, threads=1, num_blocks=64))
    wanted = SamplingParams(max_tokens=LENGTH, min_tokens=LENGTH, temperature=0.0, **params)
    return [generate(engine, [prompt], [wanted])[0] for prompt in PROMPTS]


def truth(model, prompt, output):
    """Transformers' log-probabilities [len(output), vocabulary] over the same tokens."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *output]])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


def test_the_engines_own_answers_agree_at_every_token(scorer, answers):
    for prompt, output in zip(PROMPTS, answers, strict=True):
        score = scorer.score(Sample("own", prompt, output))
        assert (score.agreement, score.first_divergence, score.matched_prefix) == (1.0, None, LENGTH)
        assert (score.mean_regret, score.max_regret, score.near_ties) == (0.0, 0.0, 0)
        assert score.first is None
        assert score.worst is None
        assert score.mean_abs_logprob_diff is None


@pytest.mark.parametrize("place", [0, 1, 17, LENGTH - 1])
def test_a_changed_token_is_found_where_it_is(scorer, answers, hf_model, place):
    prompt, output = PROMPTS[1], list(answers[1])
    expected, output[place] = output[place], 9 if output[place] != 9 else 10
    score = scorer.score(Sample("flipped", prompt, output))
    assert score.first_divergence == score.matched_prefix == place
    assert (score.first.position, score.first.token, score.first.expected) == (place, output[place], expected)
    logprobs = truth(hf_model, prompt, output)
    lost = logprobs.clone()
    lost[:, STOP] = float("-inf")
    regrets = lost.max(-1).values - logprobs[range(LENGTH), output]
    assert score.first.regret == pytest.approx(float(regrets[place]), abs=1e-4)
    assert score.mean_regret == pytest.approx(float(regrets.mean()), abs=1e-4)
    assert score.max_regret == score.worst.regret == pytest.approx(float(regrets.max()), abs=1e-4)
    assert score.worst.position == int(regrets.argmax())
    assert score.agreement == pytest.approx(float((regrets < 1e-6).float().mean()))
    assert score.near_ties == int(((regrets > 1e-6) & (regrets < NEAR_TIE_NATS)).sum())


def test_log_probabilities_are_compared_token_by_token(scorer, answers, hf_model):
    prompt, output = PROMPTS[0], answers[0]
    exact = truth(hf_model, prompt, output)[range(LENGTH), output].tolist()
    score = scorer.score(Sample("told", prompt, output, exact))
    assert score.max_abs_logprob_diff < 1e-4
    exact[3] -= 0.5
    exact[4] += 0.25
    score = scorer.score(Sample("told", prompt, output, exact))
    assert score.max_abs_logprob_diff == pytest.approx(0.5, abs=1e-4)
    assert score.mean_abs_logprob_diff == pytest.approx(0.75 / LENGTH, abs=1e-4)


def test_a_forced_length_is_no_disagreement_and_an_early_end_is_one(make_model, save_checkpoint, tmp_path, answers):
    """To force a length, engines either forbid the end token, or generate it and go on: both are right."""
    prompt, freely = PROMPTS[0], answers[0]
    place = next(i for i in range(1, LENGTH) if freely[i] not in freely[:i])
    stop = freely[place]
    model = make_model(eos_token_id=stop)  # now this token ends an answer where the model would have chosen it
    ending = Scorer(open_checkpoint(save_checkpoint(tmp_path, model)), "float32", "cpu")
    assert ending.score(Sample("went on", prompt, freely)).agreement == 1.0
    assert ending.score(Sample("ended", prompt, freely[: place + 1])).agreement == 1.0
    forbidden = greedy(tmp_path, stop_token_ids=(stop, STOP))[0]
    assert forbidden[:place] == freely[:place]
    assert stop not in forbidden
    assert ending.score(Sample("forbidden", prompt, forbidden)).agreement == 1.0
    early = [*freely[: place - 1], stop]
    assert ending.score(Sample("early", prompt, early)).first_divergence == place - 1


def test_a_long_answer_is_scored_in_steps_as_in_one(make_model, save_checkpoint, tmp_path):
    model = make_model(max_position_embeddings=2048)
    scorer = Scorer(open_checkpoint(save_checkpoint(tmp_path, model)), "float32", "cpu")
    prompt, output = [7, 8, 9] * 200, [11, 12, 13, 14] * 200
    score = scorer.score(Sample("long", prompt, output))
    logprobs = truth(model, prompt, output)
    own = logprobs[range(len(output)), output]
    logprobs[:, STOP] = float("-inf")
    regrets = logprobs.max(-1).values - own
    assert score.mean_regret == pytest.approx(float(regrets.mean()), rel=1e-4)
    assert score.agreement == pytest.approx(float((regrets < 1e-6).float().mean()))
    assert score.tokens == len(output)


@pytest.mark.parametrize(
    ("sample", "complaint"),
    [
        (Sample("a", [], [1]), "must each have at least one token"),
        (Sample("a", [1], []), "must each have at least one token"),
        (Sample("a", [1] * 200, [1] * 57), "are 257 tokens, the model was made for 256"),
        (Sample("a", [1], [5000]), "has no token 5000"),
        (Sample("a", [-1], [5]), "has no token -1"),
        (Sample("a", [1], [5, 6], [-0.1]), "1 logprobs for 2 output tokens"),
    ],
)
def test_what_cannot_be_scored_is_named(scorer, sample, complaint):
    with pytest.raises(RequestError, match=complaint):
        scorer.score(sample)


def test_a_gguf_file_scores_as_the_checkpoint_made_of_it(hf_model, checkpoint_dir, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, hf_model, open_checkpoint(checkpoint_dir).tokenizer.backend)
    convert_gguf(path, tmp_path / "checkpoint", dtype="float32", progress=lambda line: None)
    sample = Sample("one", PROMPTS[0], [30, 31, 32, 33])
    of_file, of_checkpoint = (
        Scorer(open_checkpoint(place), "float32", "cpu").score(sample) for place in (path, tmp_path / "checkpoint")
    )
    assert of_file == of_checkpoint


def run_lines(monkeypatch, capfdbinary, model, *lines):
    """The command in this process: its status, what it wrote, and its last line of complaint."""
    data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    status = main(["score", "--model", str(model), "--device", "cpu"])
    out, err = capfdbinary.readouterr()
    complaints = [line for line in err.decode().splitlines() if line.startswith("error: ")]
    return status, [json.loads(line) for line in out.splitlines()], complaints


def test_each_line_gets_a_line_and_one_that_cannot_be_scored_stops_nothing(
    monkeypatch, capfdbinary, checkpoint_dir, answers
):
    good = {"prompt_ids": PROMPTS[0], "output_ids": answers[0], "logprobs": None}
    status, scores, complaints = run_lines(
        monkeypatch,
        capfdbinary,
        checkpoint_dir,
        {"id": "a", **good},
        {"id": "b", "prompt_ids": [1], "output_ids": [9_999]},
        {"id": "c", **good},
    )
    assert (status, complaints) == (0, [])
    assert [score["id"] for score in scores] == ["a", "b", "c"]
    assert [score["agreement"] for score in scores] == [1.0, None, 1.0]
    assert [score["error"] for score in scores] == [None, "the model has no token 9999, its vocabulary is 266", None]


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b"{}\n", b'{"id": "a", "prompt_ids": [1], "output_ids": "x"}\n', b"\xff\n", b"\n"]
)
def test_a_line_that_is_no_sample_is_status_2_with_its_number(monkeypatch, capfdbinary, checkpoint_dir, line):
    first = {"id": "a", "prompt_ids": [1], "output_ids": [5]}
    status, scores, complaints = run_lines(monkeypatch, capfdbinary, checkpoint_dir, first, line)
    assert status == 2
    assert [score["id"] for score in scores] == ["a"], "what came before is not lost"
    assert len(complaints) == 1
    assert "line 2 is not a sample" in complaints[0]


def test_a_model_that_is_not_there_is_status_2(monkeypatch, capfdbinary, tmp_path):
    status, scores, complaints = run_lines(monkeypatch, capfdbinary, tmp_path / "none")
    assert (status, scores, len(complaints)) == (2, [], 1)
    assert "no such model" in complaints[0]


def test_a_real_process_answers_as_soon_as_it_is_asked(checkpoint_dir):
    """The reader of its lines need not end its input first, and it ends with its input."""
    with subprocess.Popen(
        [sys.executable, "-m", "bakeoff.reference_engine", "score", "--model", str(checkpoint_dir), "--device", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"},
    ) as process:
        for name in ("a", "b"):
            process.stdin.write(json.dumps({"id": name, "prompt_ids": [1, 2], "output_ids": [5, 6]}).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == name
        process.stdin.close()
        assert process.wait(20) == 0
