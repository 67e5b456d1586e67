"""`bakeoff models eval`: figures from the reference engine's lines, from a server's answers, and every complaint."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import torch
from aiohttp import web
from transformers import LlamaConfig, LlamaForCausalLM

from bakeoff.engines import Deployment, pick_port
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.commands import models_eval as cli_evaluating
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.cli.output import standard_output
from bakeoff.harness.errors import EvaluationFailed
from bakeoff.harness.quality import evaluation
from bakeoff.harness.quality.evaluation import (
    EvaluationSettings,
    Header,
    Line,
    Piece,
    PieceTokens,
    Question,
    QuestionTokens,
    built_in_text,
    evaluate,
)
from bakeoff.harness.quality.prompt_logprobs import Prediction, PromptScorer
from bakeoff.workloads import Tokenizer
from tests.engines.fakes.stage import Fake, running
from tests.workloads.small_tokenizers import LESSON, checkpoint

HEADER = Header("bfloat16", "auto", "cpu", "1a2b", "3c4d", 3, 2)
PIECES = [
    Piece(10, 20.0, 21.0, 0.5, 9, 1, 4),
    Piece(10, 30.0, 30.0, 0.3, 10, 0, 3),
    Piece(5, 10.0, 9.0, 0.1, 3, 1, 1),
]
QUESTIONS = [Question(1, 0, [-4.0, -3.0], [8, 2]), Question(2, 1, [-2.0, -1.0], [4, 4])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a checkpoint."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text("{}")
    return tmp_path / "tiny"


@pytest.fixture
def saying(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Sequence[str]]]:
    """`saying(*lines)`: let the reference engine write these lines; returns the arguments of its calls."""

    def replace(*lines: Line) -> list[Sequence[str]]:
        calls: list[Sequence[str]] = []

        async def written(arguments: Sequence[str]) -> AsyncGenerator[Line]:
            calls.append(arguments)
            for line in lines:
                yield msgspec.json.decode(msgspec.json.encode(line), type=Line)

        monkeypatch.setattr(evaluation, "evaluate_lines", written)
        return calls

    return replace


def bakeoff(*words: object) -> int:
    return guarded(make_app(), ["models", "eval", *map(str, words)])


def near(number: float, **limits: float) -> Any:
    return pytest.approx(number, **limits)


def test_lines_are_pooled_into_one_json_object(
    saying: Callable[..., list[Sequence[str]]], folder: Path, capsys: pytest.CaptureFixture[str]
):
    calls = saying(HEADER, *PIECES, *QUESTIONS)
    assert bakeoff(folder, "--choices", "q.jsonl", "--max-tokens", 25, "--kv-cache-dtype", "int8", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["model"], printed["reference"], printed["dtype"]) == (str(folder), str(folder), "bfloat16")
    assert (printed["tokens"], printed["pieces"], printed["text"], printed["text_sha256"]) == (25, 3, None, "1a2b")
    assert printed["tokens_sha256"] == "3c4d"
    assert printed["piece_sums"][2] == {"tokens": 5, "nats": 10.0}
    assert printed["top1_match"]["centre"] == 8 / 25
    assert printed["nats_per_token"]["centre"] == near(60 / 25)
    # residuals of 2.4 nats per token: −4, 6, −2; t of two degrees of freedom: 4.3027
    half = 4.302653 * math.sqrt(3 / 2 * (16 + 36 + 4)) / 25
    assert printed["nats_per_token"]["high"] == near(2.4 + half)
    assert printed["perplexity"]["low"] == near(math.exp(2.4 - half))
    assert printed["reference_perplexity"]["centre"] == near(math.exp(2.4))
    assert printed["perplexity_ratio"]["centre"] == near(1.0)
    assert printed["kl_nats_per_token"]["centre"] == near(0.9 / 25)
    assert printed["token_match"]["centre"] == 22 / 25
    assert printed["near_ties"] == 2
    assert printed["choices"]["accuracy"]["centre"] == 0.5
    assert printed["choices"]["accuracy_per_byte"]["centre"] == 1.0
    (arguments,) = calls
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert Path(options.pop("--text")).name == "prose.txt"
    assert options == {
        "--model": str(folder), "--max-tokens": "25", "--choices": "q.jsonl", "--kv-cache-dtype": "int8",
        "--device": "auto",
    }  # fmt: skip


def test_the_table_has_each_figure_and_what_it_is_over(
    saying: Callable[..., list[Sequence[str]]], folder: Path, capsys: pytest.CaptureFixture[str]
):
    saying(HEADER, *PIECES, *QUESTIONS)
    assert bakeoff(folder, "--reference", folder, "--choices", "q.jsonl", "--text", "t") == 0
    printed = capsys.readouterr().out
    for words in (
        f"{folder} in bfloat16\n",
        "text: t\n",
        "perplexity 11.02 ",
        "top-1 match 32.00 % [17.20, 51.58] 25 tokens in 3 pieces",
        "ratio of the two 1.000 ",
        "KL divergence, nats/token 0.03600 ",
        "token match 88.00 % [70.04, 95.83] 25 tokens; 2 of 3 mismatches",
        "accuracy 50.00 % [9.45, 90.54] 2 questions of q.jsonl",
        "accuracy, per byte 100.00 %",
    ):
        assert " ".join(words.split()) in " ".join(printed.split())


def test_bounds_keep_to_what_is_possible(saying: Callable[..., list[Sequence[str]]], folder: Path):
    async def figures(*pieces: Piece) -> evaluation.Evaluation:
        saying(msgspec.structs.replace(HEADER, pieces=len(pieces), questions=0), *pieces)
        return await evaluate(EvaluationSettings(model=str(folder), max_tokens=100), lambda done, expected: None)

    two = asyncio.run(figures(Piece(2, 1.0, 1.0, 0.0, 2, 0, 2), Piece(2, 900.0, 900.0, 0.1, 2, 0, 0)))
    assert two.perplexity.low == 1.0
    assert two.perplexity.high == math.inf
    assert two.kl_nats_per_token is not None
    assert two.kl_nats_per_token.low == 0.0
    result = asyncio.run(figures(PIECES[0]))
    assert (result.perplexity.centre, result.perplexity.low, result.choices) == (math.exp(2), None, None)


def test_the_built_in_text_is_the_same_everywhere_and_long_enough():
    text = built_in_text(1000)
    assert 8_000 <= len(text) < 8_100
    assert built_in_text(2000).startswith(text)
    assert text.startswith(" Compare and contrast how my neighbour's daughter is responsible for an unusual rainfall")


class Scoring(Fake):
    """A server that returns prompt log-probabilities, as vLLM does.

    Args:
        logprobs: the model: its log-probabilities [length − 1, vocabulary] of a prompt's successors.
        change: what is done to an answer before it is sent.
    """

    def __init__(
        self,
        logprobs: Callable[[list[int]], list[list[float]]],
        change: Callable[[dict[str, Any]], Any] = lambda answer: answer,
    ) -> None:
        super().__init__()
        self._logprobs, self._change = logprobs, change
        self.status = 200

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/models", self._models), web.post("/v1/completions", self._complete)]

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "vllm"}]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        rows = self._logprobs(body["prompt"])
        entries = [_entry(row, token) for row, token in zip(rows, body["prompt"][1:], strict=True)]
        answer = {"id": "1", "choices": [{"index": 0, "text": "x", "prompt_logprobs": [None, *entries]}]}
        return web.json_response(self._change(answer), status=self.status)


def _entry(row: list[float], token: int) -> dict[str, Any]:
    """The likeliest token and the prompt's own, with their ranks."""
    best = max(range(len(row)), key=lambda other: row[other])
    return {
        str(i): {"logprob": row[i], "rank": 1 + sum(x > row[i] for x in row), "decoded_token": "x"}
        for i in (token, best)
    }


def cyclic(prompt: list[int]) -> list[list[float]]:
    """A model of four tokens whose likeliest is the one after the last, with −1; the others have −2, −3, −4."""
    return [[-1.0 - (i - token - 1) % 4 for i in range(4)] for token in prompt[:-1]]


def predictions(fake: Fake, ids: Sequence[int] = (0, 1, 3), **changes: Any) -> list[Prediction]:
    async def scene() -> list[Prediction]:
        async with running(fake) as url, aiohttp.ClientSession() as session:
            return await PromptScorer(session, Deployment(url=f"{url}/v1", **changes), "tiny").predictions(ids)

    return asyncio.run(scene())


def test_a_prompt_is_sent_as_tokens_and_each_but_the_first_is_scored():
    fake = Scoring(cyclic)
    assert predictions(fake) == [Prediction(-1.0, 1), Prediction(-2.0, 2)]
    assert fake.bodies == [
        {"model": "tiny", "prompt": [0, 1, 3], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    ]
    with pytest.raises(Exception, match="the environment variable NO_KEY is not set"):
        predictions(fake, api_key_env="NO_KEY")


def changed(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda answer: {**answer, "choices": [{**answer["choices"][0], **fields}]}


@pytest.mark.parametrize(
    ("status", "change", "complaint"),
    [
        (200, changed(prompt_logprobs=None), "does not return prompt log-probabilities (prompt_logprobs of"),
        (400, lambda _: {"error": {"message": "unknown field `prompt_logprobs`"}}, "bakeoff models eval DIR"),
        (400, lambda _: {"object": "error", "message": "too\nlong"}, "answered HTTP 400: too long"),
        (503, lambda _: ["busy"], 'answered HTTP 503: ["busy"]'),
        (401, lambda _: {"error": "no key"}, "answered HTTP 401: no key"),
        (200, lambda _: {"choices": []}, "sent a malformed completion"),
        (200, lambda _: [], "sent a malformed completion"),
        (200, changed(prompt_logprobs=[None]), "returned 1 prompt log-probabilities for 3 tokens"),
        (200, changed(prompt_logprobs=[None, None, None]), "returned no log-probability of the prompt's token 1"),
        (200, changed(prompt_logprobs=[None, {"2": {"logprob": -1}}, None]), "of the prompt's token 1"),
    ],
)
def test_what_a_server_gets_wrong_is_one_line(status: int, change: Callable[[dict[str, Any]], Any], complaint: str):
    fake = Scoring(cyclic, change)
    fake.status = status
    with pytest.raises(EvaluationFailed) as caught:
        predictions(fake)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_address_where_nothing_listens_is_named():
    async def scene() -> None:
        async with aiohttp.ClientSession() as session:
            await PromptScorer(session, Deployment(url=f"http://127.0.0.1:{pick_port()}"), "m").predictions([1, 2])

    with pytest.raises(EvaluationFailed, match=r"^http://127.0.0.1:\d+ cannot be reached: "):
        asyncio.run(scene())


def test_lines_with_tokens_are_scored_by_the_server(saying: Callable[..., list[Sequence[str]]], folder: Path):
    calls = saying(
        HEADER,
        # likeliest of the server: 1, 2, 0 and 1; the first token is a beginning that is not predicted
        PieceTokens([0, 1, 3, 0], 1, 2.5, [[3, 2], [0]]),
        PieceTokens([0, 2], 0, 2.5, [[3]]),
        QuestionTokens(1, 0, [[0, 1, 2], [0, 1, 3, 2]], [1, 1], [1, 10]),
        QuestionTokens(2, 1, [[2, 3, 0], [2, 0]], [1, 0], [1, 1]),
    )

    async def scene() -> evaluation.Evaluation:
        async with running(Scoring(cyclic)) as url:
            server = Deployment(url=url)
            settings = EvaluationSettings(model="ref", server=server, max_tokens=100)
            return await evaluate(settings, lambda done, expected: None)

    result = asyncio.run(scene())
    assert calls[0][-1] == "--for-server"
    assert (result.model, result.reference, result.dtype) == ("tiny", "ref", None)
    assert result.tokens == 3
    assert result.nats_per_token.centre == near((2 + 1 + 2) / 3)  # tokens 3 after 1, 0 after 3, and 2 after 0
    assert result.token_match is not None
    assert result.token_match.centre == near(1 / 3)
    assert result.near_ties == 1
    assert result.top1_match.centre == near(1 / 3)
    assert result.kl_nats_per_token is None
    assert result.kl_absent is not None
    assert result.choices is not None
    # log-probabilities −1 and −2 − 3, then −1 and −2: the first answer is right, per byte neither is
    assert (result.choices.accuracy.centre, result.choices.accuracy_per_byte.centre) == (0.5, 0.0)


def test_a_server_is_evaluated_beside_its_reference_and_the_table_says_why_there_is_no_divergence(
    saying: Callable[..., list[Sequence[str]]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    calls = saying(msgspec.structs.replace(HEADER, pieces=1), PieceTokens([0, 1, 3], 0, 2.5, [[1], [0]]))

    async def predicted(scorer: PromptScorer, ids: Sequence[int]) -> list[Prediction]:
        assert (scorer.url, scorer.model, ids) == ("http://h:8000", "m", [0, 1, 3])
        return [Prediction(-1.0, 1), Prediction(-2.0, 2)]

    monkeypatch.setattr(PromptScorer, "predictions", predicted)
    assert bakeoff("--url", "http://h:8000/v1", "--model", "m", "--reference", folder) == 0
    (arguments,) = calls
    assert "--reference" not in arguments
    assert arguments[:2] == ["--model", str(folder)]
    printed = " ".join(capsys.readouterr().out.split())
    assert f"m at http://h:8000 reference: {folder} in float32" in printed
    assert "KL divergence, nats/token – – servers return the likeliest tokens only" in printed
    assert "perplexity 4.482 – 2 tokens in 1 piece " in printed
    assert "token match 50.00 %" in printed


class Rooted(Scoring):
    """A server that also reports which checkpoint it has loaded, as vLLM does."""

    root = "/nowhere"

    async def _models(self, _: web.Request) -> web.Response:
        entry = {"id": "tiny", "object": "model", "owned_by": "vllm", "root": self.root}
        return web.json_response({"object": "list", "data": [entry]})


def test_a_server_alone_has_its_text_cut_by_the_tokenizer_of_its_checkpoint(
    saying: Callable[..., list[Sequence[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    calls = saying(msgspec.structs.replace(HEADER, pieces=2), PieceTokens([0, 1, 3], 0), PieceTokens([0, 2], 0))
    (tmp_path / "tokenizer.json").write_text("{}")

    async def scene(root: Path) -> evaluation.Evaluation:
        fake = Rooted(cyclic)
        fake.root = str(root)
        async with running(fake) as url:
            settings = EvaluationSettings(model=None, server=Deployment(url=url), max_tokens=100)
            return await evaluate(settings, lambda done, expected: None)

    result = asyncio.run(scene(tmp_path))
    (arguments,) = calls
    assert arguments[:2] == ["--model", str(tmp_path)]
    assert arguments[-1] == "--tokens-only"
    assert (result.model, result.reference, result.tokens) == ("tiny", None, 3)
    assert result.nats_per_token.centre == near((1 + 2 + 2) / 3)
    assert result.top1_match.centre == near(1 / 3)
    assert (result.reference_perplexity, result.perplexity_ratio, result.token_match, result.near_ties) == (None,) * 4
    cli_evaluating._print(result, standard_output())
    printed = " ".join(capsys.readouterr().out.split())
    assert "reference: none text: built-in" in printed
    assert "KL divergence" not in printed
    with pytest.raises(EvaluationFailed, match="whose checkpoint is not on this machine; give a folder with the same"):
        asyncio.run(scene(Path("/nowhere/model")))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "give either a model's folder or name, or the --url of a server"),
        (["{folder}", "--url", "http://h"], "give either a model's folder or name, or the --url of a server"),
        (["{folder}", "--model", "m"], "--model and --api-key-env are for a server; give its --url"),
        (["{folder}", "--api-key-env", "K"], "--model and --api-key-env are for a server; give its --url"),
        (["--url", "http://h", "--reference", "{folder}", "--dtype", "float32"], "are up to the server"),
        (["--url", "h", "--reference", "{folder}"], "url must begin with http"),
        (["{folder}x"], "does not exist"),
        (["smollm"], "unknown model 'smollm'"),
        (["{folder}", "--reference", "smollm"], "unknown model 'smollm'"),
        (["{folder}", "--dtype", "int8"], "--help"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    words: list[str],
    complaint: str,
    folder: Path,
    saying: Callable[..., list[Sequence[str]]],
    capsys: pytest.CaptureFixture[str],
):
    saying()
    assert bakeoff(*(word.format(folder=folder) for word in words)) == 2
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


def test_without_the_engine_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(evaluation, "not_installed", lambda: "the reference is not installed here; run: pip")
    assert bakeoff(folder) == 2
    assert capsys.readouterr().err == "bakeoff: the reference is not installed here; run: pip\n"


def test_what_the_reference_engine_complains_of_is_passed_on():
    async def lines() -> None:
        async for line in evaluation.evaluate_lines(["--model", "m"]):
            raise AssertionError(line)

    with pytest.raises(EvaluationFailed, match="evaluate: the following arguments are required: --text, --max-tokens"):
        asyncio.run(lines())


def test_a_real_reference_and_a_server_with_the_same_weights_agree(tmp_path: Path):
    """Tokens pass from the process of the reference engine to the server without loss."""
    checkpoint(tmp_path, bare=True, merges=800)
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4}
    vocabulary = len(Tokenizer(tmp_path).vocabulary) + 3
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, eos_token_id=2, **sizes, **heads)).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "text").write_text(LESSON, encoding="utf-8")
    question = {"question": "The keeper", "choices": ["writes", "repairs the broken meter"], "answer": 1}
    (tmp_path / "questions").write_text(json.dumps(question), encoding="utf-8")

    @torch.inference_mode()
    def logprobs(prompt: list[int]) -> list[list[float]]:
        return model(input_ids=torch.tensor([prompt])).logits[0, :-1].log_softmax(-1).tolist()

    async def scene() -> evaluation.Evaluation:
        async with running(Scoring(logprobs)) as url:
            settings = EvaluationSettings(
                model=str(tmp_path), server=Deployment(url=url), text=tmp_path / "text", max_tokens=999,
                choices=tmp_path / "questions", device="cpu",
            )  # fmt: skip
            progress: list[tuple[int, int]] = []
            result = await evaluate(settings, lambda *done: progress.append(done))
            assert progress[-1] == (len(progress) - 1, len(progress) - 1)
            return result

    result = asyncio.run(scene())
    assert result.tokens > 100
    assert result.pieces > 2
    assert result.token_match is not None
    assert result.reference_perplexity is not None
    assert result.token_match.centre == 1.0
    assert result.perplexity.centre == near(result.reference_perplexity.centre, rel=1e-4)
    assert result.choices is not None
    assert result.choices.accuracy.n == 1
