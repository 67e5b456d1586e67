"""A draft model whose head has the rows of some tokens drafts those alone, and changes no answer."""

import dataclasses
import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.engine.runner import ModelRunner
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.models.execution import Batch
from bakeoff.reference_engine.offline import load_engine
from bakeoff.reference_engine.sampling import Sampler
from bakeoff.reference_engine.speculation import residual
from bakeoff.reference_engine.speculation.draft_lengths import DraftLengths
from bakeoff.reference_engine.speculation.draft_model import DraftModel
from bakeoff.reference_engine.speculation.draft_vocabulary import (
    FILE,
    DraftVocabulary,
    TokenMap,
    read_draft_vocabulary,
    vocabulary_sha256,
)
from bakeoff.reference_engine.speculation.speculator import Speculator
from bakeoff.reference_engine.tools.vocabulary_trimming import (
    coverage_text,
    frequent_vocabulary,
    most_frequent,
    write_draft_vocabulary,
)
from tests.reference_engine.conftest import VOCAB_SIZE, make_hf_model, make_tokenizer, write_checkpoint
from tests.reference_engine.speculation.test_residual_rejection import TableExecutor
from tests.reference_engine.stepping import Bench, request

EVEN = list(range(0, VOCAB_SIZE, 2))
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.6, "seed": 2, "top_k": 200},
    {"temperature": 0.5, "seed": 3, "top_p": 0.8},
    {"temperature": 0.4, "seed": 4, "min_p": 0.1},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 1},
    {"temperature": 0.9, "seed": 5, "logit_bias": {5: 3.0, 6: 3.0}},
    {"temperature": 0.7, "seed": 6, "min_tokens": 9, "stop_token_ids": frozenset(range(3, 90))},
]


def vocabulary_of(kept_ids, size=VOCAB_SIZE):
    """A draft vocabulary of the tiny checkpoints."""
    return DraftVocabulary(size, vocabulary_sha256(Tokenizer(make_tokenizer(), {}, None)), list(kept_ids))


def write_drafter(folder, kept_ids=None, **changes):
    """A model near the tiny one, which drafts the kept tokens."""
    model = make_hf_model(**changes)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    folder.mkdir()
    write_checkpoint(folder, model)
    if kept_ids is not None:
        write_draft_vocabulary(folder, vocabulary_of(kept_ids))
    return folder


@pytest.fixture
def drafting(tiny_config):
    """`drafting(folder)`: answers to the same requests, and all drafts; without drafts for None."""

    def run(folder, sampling=SAMPLING, **changes):
        if folder is not None:
            changes |= {"speculation": f"draft:3:{folder}", "adaptive_speculation": False}
        engine = load_engine(tiny_config(**changes))
        drafts = []
        if folder is not None:
            drafter = engine.core._runner._draft_model
            draft = drafter.draft

            def recording(step, copies):
                made, left = draft(step, copies)
                drafts.extend([] if made is None else made.tolist())
                return made, left

            drafter.draft = recording
        requests = [request(str(number), 5 + number, 8, **params) for number, params in enumerate(sampling)]
        for sequence in requests:
            engine.add(sequence)
        while engine.has_work:
            engine.step()
        return [sequence.token_ids[sequence.prompt_len :] for sequence in requests], drafts

    return run


def test_answers_are_those_without_drafts_and_drafts_are_kept_tokens(drafting, tmp_path):
    expected, _ = drafting(None)
    tokens, drafts = drafting(write_drafter(tmp_path / "draft", EVEN))
    assert tokens == expected
    assert len(set(drafts)) > 5
    assert set(drafts) <= set(EVEN)


def test_a_head_with_all_rows_drafts_what_the_whole_one_does(drafting, tmp_path):
    tokens = drafting(write_drafter(tmp_path / "all", range(VOCAB_SIZE)), SAMPLING[:3])
    assert tokens == drafting(write_drafter(tmp_path / "whole"), SAMPLING[:3])
    assert any(token % 2 for token in tokens[1])


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_the_trimmed_head_has_the_rows_of_the_whole_one(tiny_config, tmp_path, is_tied):
    """Logits of drafts beside those of the same folder as a served model, whose head is whole."""
    prompt, folder = [5, 6, 7, 8], write_drafter(tmp_path / "draft", EVEN, tie_word_embeddings=is_tied)
    served = load_engine(tiny_config(model=str(folder)))
    logits = served.core._runner._executor.execute(spans_of(prompt))
    assert logits.shape == (1, VOCAB_SIZE)
    shadow = load_engine(tiny_config(speculation=f"draft:3:{folder}")).core._runner._draft_model
    rows = shadow.executor.execute(spans_of(prompt))
    torch.testing.assert_close(rows, logits[:, EVEN], rtol=1e-5, atol=1e-5)
    assert shadow._chains._tokens.token_ids(rows.argmax(dim=-1)).item() == EVEN[int(logits[0, EVEN].argmax())]


def spans_of(prompt):
    count = len(prompt)
    return Batch(BlockCopies(), [Span([[0]], 0, count)], prompt, list(range(count)), [count - 1])


# Residual rejection

P = torch.tensor(
    [
        [4, 1, 2, 1],  # in eighths: what follows each token
        [2, 2, 2, 2],
        [2, 0, 4, 2],
        [0, 2, 4, 2],
        [8, 0, 0, 0],  # the prompt's last token
    ]
)
KEPT_IDS = [0, 2]


def pairs_of(tokens):
    """How often each two tokens follow the first one, in 64 requests with all halves of their random numbers.

    A draft is one of `KEPT_IDS`, each with p = 1/2. Probabilities are multiples of 1/8 such that drawing, accepting
    and drawing again each halve what is left: one request for each outcome gives the exact distribution.
    """
    draft_model = DraftModel(TableExecutor(torch.zeros(5, len(KEPT_IDS))), 0, rejects_residually=True, tokens=tokens)
    runner = ModelRunner(TableExecutor((P / 8).log()), Sampler(), draft_model)
    bench = Bench(runner, blocks=256, seqs=64, tokens=512)
    bench.engine.core._speculator = Speculator(DraftLengths(3), 512, free=draft_model.free)
    requests = [request(str(seed), prompt=[1, 4], output=4, seed=seed, temperature=1.0) for seed in range(64)]
    for sequence in requests:
        bench.engine.add(sequence)
    while bench.engine.has_work:
        bench.engine.step()
    return Counter(tuple(sequence.token_ids[3:5]) for sequence in requests)


@pytest.fixture
def _halves(monkeypatch):
    """Draws of the first two drafted places, from the bits of the seed: a quarter or three quarters."""

    def uniforms(seeds, counts, stream=0):
        places = [3 * (min(count, 2) - 1) + stream for count in counts]
        return np.array([0.25 + 0.5 * (seed >> place & 1) for seed, place in zip(seeds, places, strict=True)])

    monkeypatch.setattr(residual, "uniforms", uniforms)


@pytest.mark.usefixtures("_halves")
def test_the_joint_distribution_is_that_of_the_model():
    exact = {(a, b): int(P[0, a] * P[a, b]) for a in range(4) for b in range(4) if P[0, a] * P[a, b]}
    assert pairs_of(TokenMap(DraftVocabulary(4, "", KEPT_IDS), torch.device("cpu"))) == exact


@pytest.mark.usefixtures("_halves")
def test_a_distribution_in_the_wrong_places_is_found_out(monkeypatch):
    exact = {(a, b): int(P[0, a] * P[a, b]) for a in range(4) for b in range(4) if P[0, a] * P[a, b]}
    monkeypatch.setattr(TokenMap, "distribution", lambda _, of_rows: np.concatenate([of_rows, np.zeros(2)]))
    assert pairs_of(TokenMap(DraftVocabulary(4, "", KEPT_IDS), torch.device("cpu"))) != exact


def test_a_real_engine_rejects_residually(drafting, tmp_path):
    drawn = [{"temperature": 1.0, "seed": seed} for seed in range(2)]
    tokens, drafts = drafting(write_drafter(tmp_path / "draft", EVEN), drawn, ablation="residual_drafts")
    assert [len(answer) for answer in tokens] == [8] * 2
    assert set(drafts) <= set(EVEN)


def test_tokens_without_a_row_have_no_probability():
    tokens = TokenMap(vocabulary_of([1, 4], size=6), torch.device("cpu"))
    assert tokens.distribution(np.array([0.25, 0.75])).tolist() == [0, 0.25, 0, 0, 0.75, 0]
    assert tokens.token_ids(torch.tensor([1, 0, 1])).tolist() == [4, 1, 4]


# The file


def test_the_file_is_read_as_it_was_written(checkpoint_dir, tmp_path):
    shutil.copytree(checkpoint_dir, tmp_path / "draft")
    assert read_draft_vocabulary(open_checkpoint(tmp_path / "draft")) is None
    for kept_ids in ([0, 3, 9], EVEN):
        write_draft_vocabulary(tmp_path / "draft", vocabulary_of(kept_ids))
        assert read_draft_vocabulary(open_checkpoint(tmp_path / "draft")) == vocabulary_of(kept_ids)
    assert json.loads((tmp_path / "draft" / FILE).read_text())["kept_token_ids"] == EVEN


MISTAKES = {
    "its kept_token_ids do not increase": {"kept_token_ids": [3, 3]},
    "its kept_token_ids are not all between 0 and 265": {"kept_token_ids": [3, 266]},
    "its kept_token_ids are not all between 0 and 265;": {"kept_token_ids": [-1, 3]},
    "it keeps no token": {"kept_token_ids": []},
    "it is of a vocabulary of 49152 tokens, the model's has 266": {"vocab_size": 49152},
    "it is of another tokenizer than the model's": {"tokenizer_sha256": "0"},
    "Expected `int`, got `str`": {"kept_token_ids": [0, "1"]},
    "Expected `array`, got `null`": {"kept_token_ids": None},
}


@pytest.mark.parametrize("why", MISTAKES)
def test_a_file_that_does_not_fit_is_one_line(checkpoint_dir, tmp_path, why):
    checkpoint = dataclasses.replace(open_checkpoint(checkpoint_dir), path=tmp_path)
    right = {"vocab_size": 266, "tokenizer_sha256": vocabulary_of([0]).tokenizer_sha256, "kept_token_ids": [0, 5]}
    (tmp_path / FILE).write_text(json.dumps(right))
    assert read_draft_vocabulary(checkpoint).kept_token_ids == [0, 5]
    (tmp_path / FILE).write_text(json.dumps(right | MISTAKES[why]))
    with pytest.raises(CheckpointError) as caught:
        read_draft_vocabulary(checkpoint)
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / FILE}: {why}")
    assert line.endswith(f"; write it again with bakeoff models trim {tmp_path}, or delete it")
    assert "\n" not in line


# Counting


def test_the_most_frequent_tokens_are_kept():
    counts = {7: 3, 2: 5, 9: 1, 4: 3}
    assert most_frequent(counts, 3, 12, []) == [2, 4, 7]
    assert most_frequent(counts, 3, 12, [11]) == [2, 4, 11]  # of equally frequent ones the lower id
    assert most_frequent(counts, 6, 12, [11]) == [0, 2, 4, 7, 9, 11]
    assert most_frequent(counts, 12, 12, [11]) == list(range(12))


def test_special_tokens_are_kept_whether_the_text_has_them_or_not(checkpoint_dir):
    vocabulary = frequent_vocabulary(open_checkpoint(checkpoint_dir), 5, [[50, 60, 60], [50, 70]])
    assert vocabulary == vocabulary_of([0, 1, 2, 50, 60])
    assert coverage_text(vocabulary, [[50, 60, 60], [50, 70]]) == "5 of 266 tokens, which are 80.00%"


def test_the_command_writes_into_the_folder_and_leaves_the_rest(checkpoint_dir, tmp_path, capsys):
    folder, text = tmp_path / "draft", tmp_path / "text"
    shutil.copytree(checkpoint_dir, folder)
    text.write_text("hello hello world")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert main(["trim", str(folder), "--rows", "6", "--text", str(text)]) == 0
    assert capsys.readouterr().err == f"wrote {folder / FILE}: 6 of 266 tokens, which are 66.67% of this text\n"
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.name != FILE} == before
    ids = make_tokenizer().encode("hello hello world").ids
    kept_ids = read_draft_vocabulary(open_checkpoint(folder)).kept_token_ids
    assert set(kept_ids) >= {0, 1, 2, Counter(ids).most_common(1)[0][0]}
    for words, line in {
        "--rows 2": "a trimmed vocabulary of this model has 3 tokens, the special ones, to 266, not 2",
        "--rows 267": "a trimmed vocabulary of this model has 3 tokens, the special ones, to 266, not 267",
        "--text EMPTY": "the text is empty; give one like the answers to draft",
    }.items():
        (tmp_path / "empty").write_text("")
        given = words.replace("EMPTY", str(tmp_path / "empty")).split()
        assert main(["trim", str(folder), "--rows", "9", "--text", str(text), *given]) == 2
        assert capsys.readouterr().err == f"error: {line}\n"
