"""Green lists, their use in sampling, and their detection."""

import dataclasses
import io
import json
import math
import sys

import msgspec
import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from bakeoff.reference_engine.__main__ import main
from bakeoff.reference_engine.core.request import BeamParams, Request, SamplingParams, Watermark
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.tokenizer import number_tokenizer
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.sampling.uniform import philox
from bakeoff.reference_engine.sampling.watermark import add_watermark, are_green, green_list
from bakeoff.reference_engine.serving.core.wire import Add, Frames, Sent, frame
from bakeoff.reference_engine.tools.watermark import Detection, detect
from tests.reference_engine.server_calls import CHAT, HELLO, TEXT, with_server
from tests.reference_engine.stepping import sample

STRONG = Watermark(delta=4.0, key=11)
PROMPT = [5, 6, 7]


def request(name, previous, watermark, **params):
    return Request(name, [1, previous], SamplingParams(max_tokens=9, watermark=watermark, **params))


def mask(watermark, previous, size):
    return np.unpackbits(green_list(watermark, previous, size), count=size).astype(bool)


def is_green_by_definition(watermark, previous, token):
    """16 bits of the Philox column of the token's group of eight."""
    counter = np.array([[token // 8], [previous], [0], [1]], np.uint64)
    key = np.array([[watermark.key % 2**32], [watermark.key // 2**32]], np.uint64)
    word = int(philox(counter, key)[token % 8 // 2, 0])
    return (word >> 16 * (token % 2)) % 2**16 < round(watermark.gamma * 2**16)


@pytest.mark.parametrize("watermark", [Watermark(), Watermark(1.0, 0.9, 2**63 - 1), Watermark(1.0, 0.01, 0)], ids=str)
@pytest.mark.parametrize("previous", [0, 131_071])
def test_a_list_is_what_philox_says(watermark, previous):
    expected = [is_green_by_definition(watermark, previous, token) for token in range(266)]
    assert mask(watermark, previous, 266).tolist() == expected
    tokens = np.arange(266)
    assert are_green(watermark, np.full(266, previous), tokens).tolist() == expected


def test_lists_never_change():
    """Texts that an earlier version marked must still be detected."""
    assert green_list(Watermark(), 17, 64).tobytes().hex() == "00009005018040b4"


def test_a_larger_vocabulary_only_adds_to_a_list():
    assert mask(STRONG, 3, 49_152)[:1001].tolist() == mask(STRONG, 3, 1001).tolist()


@pytest.mark.parametrize("gamma", [0.01, 0.25, 0.5, 0.99])
def test_the_green_share_is_gamma(gamma):
    size = 128_256
    lowest, highest = binom.interval(0.9999, size, gamma)
    for key, previous in ((0, 0), (0, 1), (1, 0), (15485863, 128_000), (2**40, 77)):
        assert lowest <= mask(Watermark(2.0, gamma, key), previous, size).sum() <= highest


@pytest.mark.parametrize("other", [(STRONG, 4), (Watermark(4.0, key=12), 3), (Watermark(4.0, key=11 + 2**32), 3)])
def test_lists_of_other_tokens_and_keys_are_independent(other):
    size = 49_152
    green_twice = mask(STRONG, 3, size) & mask(*other, size)
    lowest, highest = binom.interval(0.9999, size, 0.25**2)
    assert lowest <= green_twice.sum() <= highest


def test_green_tokens_of_marked_rows_gain_delta_and_nothing_else_changes():
    torch.manual_seed(1)
    scores = torch.randn(4, 1003)
    before = scores.clone()
    halved = Watermark(1.5, 0.5, 9)
    rows = [request("a", 3, STRONG), request("b", 3, None), request("c", 8, halved), request("d", 9, STRONG)]
    add_watermark(scores, rows)
    for row, watermark, previous in ((0, STRONG, 3), (2, halved, 8), (3, STRONG, 9)):
        gain = torch.from_numpy(mask(watermark, previous, 1003) * np.float32(watermark.delta))
        assert torch.equal(scores[row], before[row] + gain)
    assert torch.equal(scores[1], before[1])


def test_the_lists_are_the_same_in_any_batch():
    torch.manual_seed(2)
    logits = torch.randn(6, 300) * 3
    rows = [
        request("a", 3, STRONG, seed=1),
        request("b", 3, None, temperature=0.0),
        request("c", 3, STRONG, temperature=0.0),
        request("d", 4, Watermark(), top_p=0.9, logprobs=2),
        request("e", 5, STRONG, logit_bias={8: 3.0}, presence_penalty=1.0),
        request("f", 5, None, seed=3),
    ]
    alone = [sample(row.clone()[None], [sequence])[0] for row, sequence in zip(logits, rows, strict=True)]
    for order in ([5, 4, 3, 2, 1, 0], [2, 0, 4], [1, 3]):
        assert sample(logits[order].clone(), [rows[i] for i in order]) == [alone[i] for i in order]


def test_a_red_token_needs_a_lead_of_delta():
    green = mask(STRONG, 5, 64)
    red, chosen = int(np.flatnonzero(~green)[0]), int(np.flatnonzero(green)[0])
    logits = torch.full((1, 64), -50.0)
    logits[0, [red, chosen]] = 1.0
    for bias, expected in ((3.9, chosen), (4.1, red)):  # temperature and top-k come after delta
        sequence = request("a", 5, STRONG, logit_bias={red: bias}, top_k=1, temperature=0.5)
        assert sample(logits.clone(), [sequence])[0].token_id == expected


def test_penalties_do_not_shrink_delta():
    green = mask(STRONG, 5, 64)
    red, chosen = int(np.flatnonzero(~green)[0]), int(np.flatnonzero(green)[0])
    logits = torch.full((1, 64), -50.0)
    logits[0, [red, chosen]] = torch.tensor([4.9, 3.0])
    params = SamplingParams(max_tokens=9, temperature=0.0, watermark=STRONG, repetition_penalty=3.0)
    assert sample(logits, [Request("a", [chosen, 5], params)])[0].token_id == chosen  # 3 / 3 + 4 > 4.9 > (3 + 4) / 3


def test_reported_log_probabilities_are_the_models_own():
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    token = sample(logits.clone(), [request("a", 5, STRONG, temperature=0.0, logprobs=0)])[0]
    assert token.logprob == pytest.approx(float(logits.log_softmax(-1)[0, token.token_id]), abs=1e-6)


@pytest.fixture(scope="module")
def llm(checkpoint_dir):
    return LLM(checkpoint_dir, dtype="float32", num_blocks=128, max_num_seqs=8, threads=1)


@pytest.fixture(scope="module")
def write(llm):
    """`write(watermark, **params)`: token ids, 200 of them unless asked for fewer."""

    def generate(watermark, max_tokens=200, **params):
        wanted = SamplingParams(max_tokens=max_tokens, watermark=watermark, **params)
        (answer,) = llm.generate([PROMPT], wanted, ignore_eos=True)
        return answer.completions[0].token_ids

    return generate


@pytest.mark.parametrize(
    "way",
    [{"seed": 3}, {"temperature": 1.3, "top_p": 0.9, "seed": 4}, {"temperature": 0.0}, {"beams": BeamParams(2)}],
    ids=["drawn", "truncated", "greedy", "beams"],
)
def test_marked_text_is_found_by_its_own_key_only(write, way):
    tokens = write(STRONG, **way)
    assert len(tokens) == 200
    detection = detect(tokens, STRONG)
    assert detection.z_score > 4
    assert detection.p_value < 1e-4
    assert [key for key in range(10) if abs(detect(tokens, Watermark(key=key)).z_score) > 3] == []


@pytest.mark.parametrize("seed", range(3))
def test_other_text_is_not_found(write, seed):
    tokens = write(None, seed=seed)
    assert [key for key in (0, 1, 11, 15485863, 2**62) if abs(detect(tokens, Watermark(key=key)).z_score) > 3] == []


@pytest.mark.parametrize("way", [{"seed": 3}, {"temperature": 0.0}], ids=["drawn", "greedy"])
def test_a_delta_of_0_changes_no_token(write, way):
    unmarked = write(None, 50, **way)
    assert write(Watermark(delta=0.0), 50, **way) == unmarked
    assert write(STRONG, 50, **way) != unmarked


def test_z_and_p_are_those_of_the_paper():
    tokens = list(range(100, 201))
    green = sum(is_green_by_definition(STRONG, token - 1, token) for token in tokens[1:])
    detection = detect(tokens, STRONG)
    z_score = (green - 25) / math.sqrt(100 * 0.25 * 0.75)
    assert detection == Detection(100, green, pytest.approx(z_score), pytest.approx(norm.sf(z_score)))


def test_a_repeated_pair_counts_once():
    once = detect([5, 6, 7, 8, 9, 5], STRONG)
    assert once.scored_tokens == 5
    assert detect([5, 6, 7, 8, 9] * 40, STRONG) == once


@pytest.mark.parametrize(
    ("tokens", "message"), [([], "0 tokens has nothing"), ([5], "1 tokens has nothing"), ([5, -1], "-1 is below 0")]
)
def test_what_cannot_be_scored_is_refused(tokens, message):
    with pytest.raises(RequestError, match=message):
        detect(tokens, STRONG)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delta": -0.1}, "delta -0.1 is not between 0 and 100"),
        ({"delta": 101}, "delta 101 is not"),
        ({"delta": math.nan}, "delta nan is not"),
        ({"gamma": 0.0}, "gamma 0.0 is not between 0.01 and 0.99"),
        ({"gamma": 1.0}, "gamma 1.0 is not"),
        ({"gamma": math.nan}, "gamma nan is not"),
        ({"key": -1}, "key -1 is not between 0 and 2"),
        ({"key": 2**63}, "key 9223372036854775808 is not"),
    ],
)
def test_values_outside_the_bounds_are_refused(values, message):
    with pytest.raises(RequestError, match=message) as caught:
        Watermark(**values)
    assert caught.value.param == "watermark"


def test_bounds_themselves_are_accepted():
    assert Watermark(0, 0.01, 0) != Watermark(100, 0.99, 2**63 - 1)


def test_it_crosses_to_the_engine_process():
    sent = request("a", 3, Watermark(0.5, 0.75, 2**63 - 1))
    (body,) = Frames().feed(frame(Add([Sent.of(sent)])))
    (received,) = msgspec.msgpack.decode(body, type=Add).requests
    assert received.request().sampling == sent.sampling


@pytest.mark.parametrize(("path", "body"), [(TEXT, {"prompt": PROMPT}), (CHAT, {"messages": HELLO})])
def test_a_server_marks_what_it_is_asked_to(serve, path, body):
    async def test(s):
        wanted = {"max_tokens": 80, "ignore_eos": True, "return_token_ids": True, "seed": 3, "temperature": 1}
        answers = [
            await s.post(path, body | wanted | {"watermark": watermark})
            for watermark in ({"delta": 4}, {"delta": 4, "gamma": 0.5, "key": 7}, None)
        ]
        marked, other, plain = (answer["choices"][0]["token_ids"] for answer in answers)
        assert detect(marked, Watermark()).z_score > 4
        assert detect(other, Watermark(4.0, 0.5, 7)).z_score > 4
        assert abs(detect(other, Watermark()).z_score) < 3
        assert abs(detect(plain, Watermark()).z_score) < 3

    with_server(serve, test)


@pytest.fixture
def number_model(checkpoint_dir, tmp_path):
    """A model folder of whose tokenizer texts are token ids, so that each text has one tokenisation."""
    (tmp_path / "config.json").write_bytes((checkpoint_dir / "config.json").read_bytes())
    number_tokenizer(266).backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_the_command_prints_one_line_of_json(number_model, write, capsys, monkeypatch):
    tokens = write(STRONG, seed=3)
    text = " ".join(map(str, tokens))
    (number_model / "text").write_text(text)
    line = ["watermark", "--model", str(number_model), "--key", "11"]
    assert main([*line, "--text", str(number_model / "text")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == dataclasses.asdict(detect(tokens, STRONG))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(line) == 0
    assert capsys.readouterr().out == out
    assert main([*line[:3], "--gamma", "0.5", "--text", str(number_model / "text")]) == 0
    assert json.loads(capsys.readouterr().out) == dataclasses.asdict(detect(tokens, Watermark(gamma=0.5)))


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (b"\xff\xfe", [], "text cannot be read as UTF-8 text"),
        (None, [], "text cannot be read as UTF-8 text"),
        (b"5", [], "a text of 1 tokens has nothing to score"),
        (b"5 6", ["--gamma", "1"], "watermark gamma 1.0 is not between"),
        (b"5 6", ["--model", "nowhere"], "nowhere: no such model"),
    ],
)
def test_a_mistake_is_status_2(number_model, capsys, text, flags, message):
    if text is not None:
        (number_model / "text").write_bytes(text)
    assert main(["watermark", "--model", str(number_model), "--text", str(number_model / "text"), *flags]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert message in error
