"""``bakeoff models prune``, ``distil``, ``trim``, ``eagle`` and ``quantize``: small models, and heads, from large ones.

Each replaces this process by one of the reference engine, whose standard input is the built-in text.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import cyclopts

from bakeoff.harness.cli.evaluating import models_app

__all__ = ["models_app"]

_PROMPTS = 2_000
_PROMPT_UNITS = 12
"""Units of the grammars per prompt: 20 to 60 words."""
_CODE_EVERY = 4
Device = Literal["auto", "cpu", "cuda"]
RoundingMethod = Literal["int8", "int8-zp", "int4", "int4-zp", "fp8", "llm-int8", "nf4", "nf4-double"]
"""Values of `Method` that need only the weights."""
Method = Literal[
    RoundingMethod, "gptq", "awq", "w8a8", "gguf-f32", "gguf-f16", "gguf-bf16", "gguf-q8_0", "gguf-q5_1", "gguf-q5_0",
    "gguf-q4_1", "gguf-q4_0", "gguf-mxfp4",
]  # fmt: skip
"""Methods of ``quantize``; the reference engine's names."""


@models_app.command(name="prune")
def prune(
    model: str,
    *,
    out: Annotated[Path, cyclopts.Parameter(name="--out")],
    layers: int | None = None,
    neurons: float | None = None,
    heads: float | None = None,
    weights: float | None = None,
    by: Literal["activation", "magnitude"] = "activation",
    text: Path | None = None,
    calibration_tokens: int = 4096,
    device: Device = "auto",
) -> None:
    """Remove the layers, neurons, heads and weights of a model that matter least on a text.

    docs/pruning.md says how importance is measured.

    Parameters
    ----------
    model
        Known model name (bakeoff models list), or path of a checkpoint folder.
    out
        Folder of the new checkpoint; another checkpoint there is replaced.
    layers
        Number of layers to keep.
    neurons
        Share of each layer's MLP neurons to keep.
    heads
        Share of each layer's key-value heads to keep, each with its query heads.
    weights
        Share of each matrix's weights to keep; the others become zero.
    by
        Score of single weights: activation (Wanda) or magnitude.
    text
        UTF-8 file to measure importance on. Default: prompts generated from the grammars of the workloads.
    calibration_tokens
        Tokens of the text to use.
    device
        Where to compute; auto is cuda if there is one.
    """
    options = {
        "--out": out, "--layers": layers, "--neurons": neurons, "--heads": heads, "--weights": weights, "--by": by,
        "--text": text, "--calibration-tokens": calibration_tokens, "--device": device,
    }  # fmt: skip
    _become("prune", [_folder(model)], options)


@models_app.command(name="distil")
def distil(
    teacher: str,
    student: str,
    *,
    out: Annotated[Path, cyclopts.Parameter(name="--out")],
    loss: Literal["forward-kl", "reverse-kl"] = "forward-kl",
    steps: int = 300,
    batch_tokens: int = 2048,
    learning_rate: float = 5e-4,
    text: Path | None = None,
    text_tokens: int = 131_072,
    answer_tokens: int = 128,
    temperature: float = 1.0,
    seed: int = 0,
    save_steps: int = 50,
    trim_vocabulary: int | None = None,
    rounded_to: RoundingMethod | None = None,
    group_size: int | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    device: Device = "auto",
) -> None:
    """Distil a student from text that its teacher generates. Run the same command again to resume.

    docs/pruning.md describes the training and its record.

    Parameters
    ----------
    teacher
        Known model name (bakeoff models list), or path of a checkpoint folder.
    student
        Another one with the same tokenizer, such as bakeoff models prune makes.
    out
        Folder of the new checkpoint; until the end it holds what is needed to go on.
    loss
        Divergence of the student from the teacher to minimise.
    steps
        Steps of the optimizer.
    batch_tokens
        Tokens of a step, prompts included, at most.
    learning_rate
        At its peak, after the warm-up.
    text
        UTF-8 file of prompts, one on each line. Default: prompts generated from the grammars of the workloads.
    text_tokens
        Tokens that the teacher writes; more steps learn from them again.
    answer_tokens
        Tokens of one answer, at most.
    temperature
        Of the teacher's sampling.
    seed
        Of prompts, sampling and order.
    save_steps
        Steps between two saved states, and between two measurements on held-out text.
    trim_vocabulary
        Number of tokens that the student proposes as a draft model: those that the teacher writes most. Default: all.
    rounded_to
        Method of quantize by which matrices are rounded meanwhile: quantisation-aware training. Default: none.
    group_size
        Inputs that share a scale, as in quantize.
    dtype
        Type to compute in; weights and optimizer are float32. auto is bfloat16 on a GPU and float32 on a CPU.
    device
        Where to compute; auto is cuda if there is one.
    """
    options = {
        "--out": out, "--loss": loss, "--steps": steps, "--batch-tokens": batch_tokens,
        "--learning-rate": learning_rate, "--text": text, "--text-tokens": text_tokens,
        "--answer-tokens": answer_tokens, "--temperature": temperature, "--seed": seed, "--save-steps": save_steps,
        "--trim-vocabulary": trim_vocabulary, "--rounded-to": rounded_to, "--group-size": group_size, "--dtype": dtype,
        "--device": device,
    }  # fmt: skip
    _become("distil", [_folder(teacher), _folder(student)], options)


@models_app.command(name="trim")
def trim(model: str, *, rows: int = 8192, text: Path | None = None) -> None:
    """List the tokens that a draft model proposes: those that a text uses most, and all special ones.

    The list goes into the model's folder, where only speculative decoding reads it; the weights stay as they are.

    Parameters
    ----------
    model
        Path of a draft model's checkpoint folder.
    rows
        Tokens to keep: so many rows of the head are computed for each draft.
    text
        UTF-8 file like the answers to draft. Default: prompts generated from the grammars of the workloads.
    """
    _become("trim", [_folder(model)], {"--rows": rows, "--text": text})


@models_app.command(name="eagle")
def eagle(
    model: str,
    *,
    out: Annotated[Path, cyclopts.Parameter(name="--out")],
    places: int = 3,
    draft_vocab: int = 0,
    steps: int = 300,
    batch_tokens: int = 2048,
    learning_rate: float = 5e-4,
    text: Path | None = None,
    text_tokens: int = 131_072,
    answer_tokens: int = 128,
    temperature: float = 1.0,
    seed: int = 0,
    save_steps: int = 50,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    device: Device = "auto",
) -> None:
    """Train an EAGLE-3 draft head on text that its model writes; after Ctrl-C the same command goes on.

    docs/pruning.md describes the training and its record; vLLM and the reference engine load the folder.

    Parameters
    ----------
    model
        Known model name (bakeoff models list), or path of a checkpoint folder.
    out
        Folder of the head; until the end it holds what is needed to go on.
    places
        Drafts of a chain that are trained.
    draft_vocab
        Tokens that the head can propose, those that the model writes most often; 0 is all.
    steps
        Steps of the optimizer.
    batch_tokens
        Tokens of a step, prompts included, at most.
    learning_rate
        At its peak, after the warm-up.
    text
        UTF-8 file of prompts, one on each line. Default: prompts generated from the grammars of the workloads.
    text_tokens
        Tokens that the model writes; more steps learn from them again.
    answer_tokens
        Tokens of one answer, at most.
    temperature
        Of the model's sampling.
    seed
        Of weights, prompts, sampling and order.
    save_steps
        Steps between two saved states, and between two measurements on held-out text.
    dtype
        Type to compute in; weights and optimizer are float32. auto is bfloat16 on a GPU and float32 on a CPU.
    device
        Where to compute; auto is cuda if there is one.
    """
    options = {
        "--out": out, "--places": places, "--draft-vocab": draft_vocab, "--steps": steps,
        "--batch-tokens": batch_tokens, "--learning-rate": learning_rate, "--text": text,
        "--text-tokens": text_tokens, "--answer-tokens": answer_tokens, "--temperature": temperature, "--seed": seed,
        "--save-steps": save_steps, "--dtype": dtype, "--device": device,
    }  # fmt: skip
    _become("eagle", [_folder(model)], options)


@models_app.command(name="quantize")
def quantize(
    model: str,
    *,
    out: Annotated[Path, cyclopts.Parameter(name="--out")],
    method: Method,
    group_size: int | None = None,
    act_order: Annotated[bool, cyclopts.Parameter(negative="")] = False,
    asymmetric: Annotated[bool, cyclopts.Parameter(negative="")] = False,
    smoothing: float | None = None,
    budget_mb: float | None = None,
    text: Path | None = None,
    calibration_tokens: int = 32_768,
    device: Device = "auto",
) -> None:
    """Quantise the weights of a model, one layer at a time; after Ctrl-C the same command goes on.

    docs/quantisation.md describes the methods and what they cost.

    Parameters
    ----------
    model
        Known model name (bakeoff models list), or path of a checkpoint folder.
    out
        Folder of the new checkpoint; until the end it holds the layers that are done. For gguf-…, a file in .gguf.
    method
        How codes are chosen; gptq, awq and w8a8 measure on a text what each matrix gets as input.
    group_size
        Inputs that share a scale (int8, int4, gptq, awq). Default: the largest of 128, 64 and 32 that divides the
        widths, and for int8 all inputs.
    act_order
        Round columns with large inputs first (gptq).
    asymmetric
        Give each group a zero point (gptq); awq and the methods in -zp always have one.
    smoothing
        Share of the difficulty that weights take over from activations (w8a8), 0 to 1. Default: 0.5.
    budget_mb
        Millions of bytes that the weights may take: layers that matter most get 8 bits or stay plain (int4).
    text
        UTF-8 file to calibrate on. Default: prompts generated from the grammars of the workloads.
    calibration_tokens
        Tokens of the text to use.
    device
        Where to compute; auto is cuda if there is one.
    """
    options = {
        "--out": out, "--method": method, "--group-size": group_size, "--text": text,
        "--calibration-tokens": calibration_tokens, "--device": device,
        "--act-order": act_order, "--asymmetric": asymmetric, "--smoothing": smoothing,
        "--budget-mb": budget_mb,
    }  # fmt: skip
    _become("quantize", [_folder(model)], options)


def _folder(name_or_path: str) -> str:
    from bakeoff.harness.cli.listing import named_model

    return str(named_model(name_or_path).path)


def _become(command: str, models: Sequence[str], options: Mapping[str, object]) -> None:
    """Replace this process by a command of the reference engine.

    Raises:
        ReferenceMissing: its packages are not installed.
    """
    from bakeoff.harness.errors import ReferenceMissing
    from bakeoff.harness.quality.scorer import not_installed

    if why := not_installed():
        raise ReferenceMissing(why)
    if options["--text"] is None:
        # The file has no name, so nothing is left of it when the process ends.
        with tempfile.TemporaryFile() as file:
            file.write(built_in_prompts().encode())
            file.seek(0)
            os.dup2(file.fileno(), 0)
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words += [name, str(value)]
    argv = [sys.executable, "-m", "bakeoff.reference_engine", command, *models, *words]
    os.execv(sys.executable, argv)  # noqa: S606  (no shell: the new process gets this one's signals)


def built_in_prompts() -> str:
    """Generate prompts, one on each line: the same on every machine; every fourth is about code."""
    from itertools import islice

    from bakeoff.workloads.rng import Rng
    from bakeoff.workloads.text.code import code_units
    from bakeoff.workloads.text.prose import prose_units

    lines: list[str] = []
    for number in range(_PROMPTS):
        write = code_units if number % _CODE_EVERY == 0 else prose_units
        words = "".join(islice(write(Rng("1", "prompts", str(number))), _PROMPT_UNITS))
        lines.append(" ".join(words.split()))
    return "\n".join(lines) + "\n"
