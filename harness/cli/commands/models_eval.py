"""``bakeoff models eval``: the quality of a model, from its files or behind a server."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from bakeoff.harness.cli.command import Command
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import Json
from bakeoff.harness.cli.output import standard_output

if TYPE_CHECKING:
    from rich.console import Console

    from bakeoff.harness.quality.evaluation import EvaluationSettings
    from bakeoff.results.compare.evaluation import Evaluation
    from bakeoff.results.statistics.interval import Interval


_MAX_TOKENS = 16_384
"""Takes SmolLM2-135M about a minute on two cores."""


def evaluate(
    checkpoint: Annotated[str | None, cyclopts.Parameter(name="DIR")] = None,
    /,
    *,
    url: str | None = None,
    model: str | None = None,
    reference: str | None = None,
    text: Path | None = None,
    max_tokens: int = _MAX_TOKENS,
    choices: Path | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    kv_cache_dtype: Literal["int8", "fp8", "int4"] | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    api_key_env: str | None = None,
    json: Json = False,
) -> int:
    """Evaluate a model: perplexity, divergence from a reference, token match, and accuracy on your questions.

    docs/definitions.md has the formulas. Intervals are at 95 %.

    Examples
    --------
    bakeoff models eval smollm2-135m-instruct
    bakeoff models eval small --reference large --json
    bakeoff models eval --url http://127.0.0.1:8000 --reference smollm2-135m-instruct

    Parameters
    ----------
    checkpoint
        Known model name (bakeoff models list), or path of a checkpoint folder or GGUF file.
    url
        Evaluate a running server instead, through the prompt_logprobs of its /v1/completions, which vLLM and the
        reference engine have.
    model
        Model name to send in requests to --url. Default: the server's only model.
    reference
        Model with the same tokenizer to compare with, computed in float32. Default: the same weights; for a server
        none, and its checkpoint must then be on this machine, for the tokenizer.
    text
        UTF-8 file to predict. Default: English generated from the grammar of the workloads.
    max_tokens
        Tokens of the text to use.
    choices
        JSON lines of multiple-choice questions: {"question": "…", "choices": ["…", "…"], "answer": 0}.
    dtype
        Type to compute the model in. Default: its own, as the reference engine serves it.
    kv_cache_dtype
        Type of the model's KV cache. Default: not rounded.
    device
        Where the reference engine computes; auto is cuda if there is one.
    api_key_env
        Environment variable that holds the server's API key.
    json
        Print the evaluation as JSON on stdout. bakeoff gate --metric perplexity compares two of these.
    """
    import asyncio

    from bakeoff.harness.cli.output import print_json
    from bakeoff.harness.quality.evaluation import evaluate as evaluate_model

    settings = _settings(
        checkpoint, url=url, model=model, reference=reference, text=text, max_tokens=max_tokens, choices=choices,
        dtype=dtype, kv_cache_dtype=kv_cache_dtype, device=device, api_key_env=api_key_env,
    )  # fmt: skip
    evaluation = asyncio.run(evaluate_model(settings, _progress))
    if json:
        print_json(evaluation)
    else:
        _print(evaluation, standard_output())
    return EXIT_OK


def _settings(
    checkpoint: str | None,
    *,
    url: str | None,
    model: str | None,
    reference: str | None,
    text: Path | None,
    max_tokens: int,
    choices: Path | None,
    dtype: str | None,
    kv_cache_dtype: str | None,
    device: str,
    api_key_env: str | None,
) -> "EvaluationSettings":
    """Check the combination of options, and resolve model names.

    Raises:
        EvaluationFailed: options contradict each other, or one is missing.
        ModelNotFound: there is no such model.
    """
    from bakeoff.engines import Deployment
    from bakeoff.harness.cli.known_models import named_model
    from bakeoff.harness.errors import EvaluationFailed
    from bakeoff.harness.quality.evaluation import EvaluationSettings

    if (checkpoint is None) == (url is None):
        raise EvaluationFailed("give either a model's folder or name, or the --url of a server")
    if url is None and (model or api_key_env):
        raise EvaluationFailed("--model and --api-key-env are for a server; give its --url")
    if url is not None and (dtype or kv_cache_dtype):
        raise EvaluationFailed("--dtype and --kv-cache-dtype are up to the server; leave them out with --url")
    named = {name: named_model(name).path for name in (checkpoint, reference) if name is not None}
    return EvaluationSettings(
        model=named.get(checkpoint or reference or ""),
        reference=None if url is not None or reference is None else named[reference],
        server=None if url is None else Deployment(url=url, api_key_env=api_key_env),
        served_model=model,
        text=text,
        max_tokens=max_tokens,
        choices=choices,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
    )


def _progress(done: int, expected: int) -> None:
    """Show on a terminal how many pieces and questions are done."""
    if sys.stderr.isatty():
        end = "\n" if done == expected else ""
        sys.stderr.write(f"\r{done} of {expected} pieces and questions{end}")
        sys.stderr.flush()


def _print(evaluation: "Evaluation", console: "Console") -> None:
    from rich.text import Text

    from bakeoff.results.show.table import text_table
    from bakeoff.results.show.terminal import print_table
    from bakeoff.results.text.format import plain

    for line in _captions(evaluation):
        console.print(Text(plain(line)), soft_wrap=True)
    print_table(text_table("Quality", ("", "value", "95 % interval", "over"), _rows(evaluation)), console)


def _captions(evaluation: "Evaluation") -> list[str]:
    cache = "" if evaluation.kv_cache_dtype in {None, "auto"} else f", KV cache {evaluation.kv_cache_dtype}"
    how = f"at {evaluation.url}" if evaluation.url else f"in {evaluation.dtype}{cache}"
    same = evaluation.reference == evaluation.model and evaluation.url is None
    reference = "the same weights" if same else evaluation.reference
    text = evaluation.text or "built-in English prose, generated"
    beside = "none" if reference is None else f"{reference} in float32"
    return [f"{evaluation.model} {how}", f"reference: {beside}", f"text: {text}"]


def _rows(evaluation: "Evaluation") -> list[tuple[str, str, str, str]]:
    from bakeoff.results.text.format import ABSENT

    tokens = f"{evaluation.tokens:,} tokens in {evaluation.pieces} {'piece' if evaluation.pieces == 1 else 'pieces'}"
    kl = evaluation.kl_nats_per_token
    rows = [
        ("perplexity", *_numbers(evaluation.perplexity), tokens),
        ("top-1 match", *_shares(evaluation.top1_match), tokens),
    ]
    if evaluation.reference_perplexity and evaluation.perplexity_ratio and evaluation.token_match:
        mismatches = round((1 - evaluation.token_match.centre) * evaluation.tokens)
        rows += [
            ("perplexity of the reference", *_numbers(evaluation.reference_perplexity), tokens),
            ("ratio of the two", *_numbers(evaluation.perplexity_ratio), "the same pieces, paired"),
            ("KL divergence, nats/token", *_numbers(kl), tokens)
            if kl
            else ("KL divergence, nats/token", ABSENT, ABSENT, evaluation.kl_absent or ""),
            (
                "token match", *_shares(evaluation.token_match),
                f"{evaluation.tokens:,} tokens; {evaluation.near_ties:,} of {mismatches:,} mismatches are near ties",
            ),
        ]  # fmt: skip
    if accuracy := evaluation.choices:
        questions = f"{accuracy.accuracy.n:,} questions of {accuracy.file}"
        rows.append(("accuracy", *_shares(accuracy.accuracy), questions))
        rows.append(("accuracy, per byte", *_shares(accuracy.accuracy_per_byte), questions))
    return rows


def _numbers(interval: "Interval") -> tuple[str, str]:
    """Centre and bounds with four significant digits."""
    from bakeoff.results.text.format import ABSENT

    if interval.low is None or interval.high is None:
        return f"{interval.centre:#.4g}", ABSENT
    return f"{interval.centre:#.4g}", f"[{interval.low:#.4g}, {interval.high:#.4g}]"


def _shares(interval: "Interval") -> tuple[str, str]:
    low, high = (_percent(bound or 0.0) for bound in (interval.low, interval.high))
    return f"{_percent(interval.centre)} %", f"[{low}, {high}]"


def _percent(share: float) -> str:
    """Truncated, so that 100.00 means all; the small term makes up for 0.57 * 1e4 < 5700."""
    return f"{int(share * 1e4 + 1e-6) / 100:.2f}"


COMMANDS = [Command("models eval", evaluate)]
