"""The command line of the engine: `serve`, and tools for models and texts.

Exit status 0 done, 1 our fault, 2 the caller's; a line on stderr.
"""

import argparse
import asyncio
import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.quantization_names import GgufName, RoundingName, WrittenName
from bakeoff.reference_engine.core.request import Watermark
from bakeoff.reference_engine.engine.memory import share_one_arena
from bakeoff.reference_engine.errors import ConfigError, ReferenceEngineError, UserMistakeError

_DTYPES = ("bfloat16", "float16", "float32")
_PERPLEXITY_FLAGS = (
    "model", "dtype", "quantization", "device", "threads", "max_model_len", "block_size", "kv_cache_dtype",
    "attention_window", "attention_sinks", "kv_budget", "kv_heavy",
)  # fmt: skip
_EVALUATE_FLAGS = ("model", "dtype", "device", "threads", "kv_cache_dtype")


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser; the options of `serve` are the fields of EngineConfig."""
    parser = argparse.ArgumentParser(prog="python -m bakeoff.reference_engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="OpenAI-compatible HTTP server for one model")
    for field in dataclasses.fields(EngineConfig):
        _add_flag(serve, field)
    convert = commands.add_parser("convert", help="GGUF file to Hugging Face checkpoint, or to plain GGUF")
    convert.add_argument("source", type=Path, metavar="SRC.gguf")
    convert.add_argument("target", type=Path, metavar="OUT", help="a directory, or a file that ends in .gguf")
    convert.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="of the weights; %(default)s")
    score = commands.add_parser("score", help="how answers compare with this model: JSON lines in, JSON lines out")
    score.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory or .gguf file")
    score.add_argument("--dtype", choices=_DTYPES, default="float32", help="to compute in; %(default)s")
    score.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda if there is one")
    perplexity = commands.add_parser("perplexity", help="of a text, under any setting of the KV cache: one JSON line")
    perplexity.add_argument("--text", type=Path, required=True, help="UTF-8 file, in pieces of --max-model-len")
    perplexity.add_argument("--step-tokens", type=int, default=32, help="computed at once (default: %(default)s)")
    for field in dataclasses.fields(EngineConfig):
        if field.name in _PERPLEXITY_FLAGS:
            _add_flag(perplexity, field)
    watermark = commands.add_parser("watermark", help="whether a text has one: counts, z-score, p-value in a JSON line")
    watermark.add_argument("--model", type=Path, required=True, help="whose tokenizer: checkpoint directory or .gguf")
    watermark.add_argument("--text", type=Path, help="UTF-8 file, without its prompt (default: standard input)")
    default = Watermark()
    watermark.add_argument("--gamma", type=float, default=default.gamma, help="as in the request; %(default)s")
    watermark.add_argument("--key", type=int, default=default.key, help="as in the request; %(default)s")
    _add_evaluate(
        commands.add_parser("evaluate", help="a model beside a reference, for bakeoff models eval: JSON lines")
    )
    _add_prune(commands.add_parser("prune", help="a smaller checkpoint, by what matters least on a text"))
    _add_distil(commands.add_parser("distil", help="train a student to predict as a teacher does"))
    _add_trim(commands.add_parser("trim", help="list the tokens that a draft model proposes, by a text"))
    _add_eagle(commands.add_parser("eagle", help="train an EAGLE-3 draft head for a model"))
    _add_quantize(commands.add_parser("quantize", help="a checkpoint whose matrices take fewer bits"))
    return parser


def _add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument("--text", type=Path, required=True, help="UTF-8 file")
    evaluate.add_argument("--max-tokens", type=int, required=True, help="tokens of the text to use")
    evaluate.add_argument("--reference", type=Path, help="compare with this model; default: the same in float32")
    evaluate.add_argument("--choices", type=Path, help="JSON lines with question, choices and answer, an index")
    evaluate.add_argument(
        "--for-server", action="store_true", help="report tokens for a server; --model is its reference"
    )
    evaluate.add_argument("--tokens-only", action="store_true", help="the same without computing a reference")
    for field in dataclasses.fields(EngineConfig):
        if field.name in _EVALUATE_FLAGS:
            _add_flag(evaluate, field)


def _add_prune(prune: argparse.ArgumentParser) -> None:
    prune.add_argument("source", type=Path, metavar="MODEL", help="Hugging Face checkpoint directory")
    prune.add_argument("--layers", type=int, help="number of layers to keep")
    prune.add_argument("--neurons", type=float, help="share of each layer's MLP neurons to keep")
    prune.add_argument("--heads", type=float, help="share of each layer's key-value heads, with their queries, to keep")
    prune.add_argument("--weights", type=float, help="share of each matrix's weights to keep; others become zero")
    prune.add_argument("--by", choices=("activation", "magnitude"), default="activation", help="of --weights")
    prune.add_argument("--calibration-tokens", type=int, default=4096, help="of the text; %(default)s")
    _add_target(prune)


def _add_distil(distil: argparse.ArgumentParser) -> None:
    """Fields of `tools.distillation.Distillation`; `--help` must not import torch."""
    distil.add_argument("teacher", type=Path, metavar="TEACHER", help="Hugging Face checkpoint directory")
    distil.add_argument("student", type=Path, metavar="STUDENT", help="another one with the same tokenizer")
    distil.add_argument("--loss", choices=("forward-kl", "reverse-kl"), default="forward-kl", help="%(default)s")
    distil.add_argument("--trim-vocabulary", type=int, help="tokens that the student drafts (default: all)")
    distil.add_argument(
        "--rounded-to", choices=get_args(RoundingName), help="round matrices meanwhile, as quantize does"
    )
    distil.add_argument("--group-size", type=int, help="of --rounded-to: inputs that share a scale")
    _add_training(distil)


def _add_eagle(eagle: argparse.ArgumentParser) -> None:
    """Fields of `tools.head_training.HeadTraining`."""
    eagle.add_argument("model", type=Path, metavar="MODEL", help="Hugging Face checkpoint directory")
    for name, default, text in (
        ("places", 3, "drafts of a chain that are trained"),
        ("draft-vocab", 0, "tokens that the head can propose, the most frequent ones; 0: all"),
    ):
        eagle.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    _add_training(eagle)


def _add_training(command: argparse.ArgumentParser) -> None:
    """Fields of `tools.training_run.TrainingSettings`."""
    for name, default, text in (
        ("steps", 300, "of the optimizer"),
        ("batch-tokens", 2048, "tokens of a step, at most"),
        ("text-tokens", 131_072, "tokens that the teacher writes"),
        ("answer-tokens", 128, "tokens of one answer, at most"),
        ("save-steps", 50, "steps between saved states, and between measurements on held-out text"),
        ("seed", 0, "of prompts, sampling and order"),
        ("learning-rate", 5e-4, "at its peak"),
        ("temperature", 1.0, "of the teacher's sampling"),
    ):
        command.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (default: %(default)s)")
    command.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="to compute in")
    _add_target(command)


def _add_trim(trim: argparse.ArgumentParser) -> None:
    trim.add_argument("folder", type=Path, metavar="DRAFT", help="Hugging Face checkpoint directory")
    trim.add_argument("--rows", type=int, default=8192, help="tokens to keep (default: %(default)s)")
    trim.add_argument("--text", type=Path, help="UTF-8 file like the answers to draft (default: standard input)")


def _add_quantize(quantize: argparse.ArgumentParser) -> None:
    """Fields of `tools.quantisation_methods.Quantising`; `--help` must not import torch."""
    quantize.add_argument("source", type=Path, metavar="MODEL", help="Hugging Face checkpoint directory")
    quantize.add_argument(
        "--method", choices=(*get_args(WrittenName), *get_args(GgufName)), required=True, help="how codes are chosen"
    )
    quantize.add_argument("--group-size", type=int, help="inputs that share a scale")
    quantize.add_argument("--act-order", action="store_true", help="round columns with large inputs first (gptq)")
    quantize.add_argument("--asymmetric", action="store_true", help="a zero point for each group (gptq)")
    quantize.add_argument("--smoothing", type=float, help="share of difficulty that weights take over (w8a8; 0.5)")
    quantize.add_argument("--budget-mb", type=float, help="10^6 bytes of weights; layers get 4, 8 or all bits (int4)")
    quantize.add_argument("--calibration-tokens", type=int, default=32_768, help="of the text; %(default)s")
    _add_target(quantize)


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", dest="target", type=Path, required=True, help="directory to write")
    command.add_argument("--text", type=Path, help="UTF-8 file (default: standard input)")
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda if there is one")


def _add_flag(parser: argparse.ArgumentParser, field: "dataclasses.Field[object]") -> None:
    """One field of EngineConfig as a flag; its annotation is Annotated[type, help text]."""
    kind, text = get_args(get_type_hints(EngineConfig, include_extras=True)[field.name])
    is_required = field.default is dataclasses.MISSING
    has_default = not is_required and field.default is not None
    flag = f"--{field.name.replace('_', '-')}"
    described = f"{text} (default: %(default)s)" if has_default else text
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default, help=described)
        return
    parser.add_argument(
        flag,
        required=is_required,
        type=next((number for number in (int, float) if number in (kind, *get_args(kind))), str),
        choices=get_args(kind) if get_origin(kind) is Literal else None,
        default=None if is_required else field.default,
        help=described,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    options = vars(build_parser().parse_args(arguments))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("gguf").setLevel(logging.WARNING)
    command = _COMMANDS[options.pop("command")]
    try:
        command(options)
    except UserMistakeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except ReferenceEngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.core.files import check_model_path  # noqa: PLC0415 (not needed for --help)
    from bakeoff.reference_engine.serving.server import serve  # noqa: PLC0415
    from bakeoff.reference_engine.serving.service import Service  # noqa: PLC0415

    share_one_arena()
    config = EngineConfig(**options)  # type: ignore[arg-type]
    check_model_path(Path(config.model))
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(serve(Service(config)))


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 (not on every platform)
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _convert(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.convert import convert_gguf  # noqa: PLC0415 (imports torch)
    from bakeoff.reference_engine.tools.gguf_copy import copy_gguf  # noqa: PLC0415

    write = copy_gguf if Path(str(options["target"])).suffix == ".gguf" else convert_gguf
    write(**options, progress=_say)  # type: ignore[arg-type]


def _score(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.evaluator import score_lines  # noqa: PLC0415 (imports torch)

    for line in score_lines(sys.stdin.buffer, **options):  # type: ignore[arg-type]
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def _perplexity(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.evaluator import measure_file  # noqa: PLC0415 (imports torch)

    text, step_tokens = Path(str(options.pop("text"))), int(str(options.pop("step_tokens")))
    # A single sequence, without a server: settings for serving are chosen so that they contradict nothing.
    config = EngineConfig(**options, max_num_seqs=1, enable_prefix_caching=False)  # type: ignore[arg-type]
    perplexity = measure_file(text, config, step_tokens)
    sys.stdout.write(json.dumps(dataclasses.asdict(perplexity)) + "\n")


def _watermark(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.watermark import detect_in_file  # noqa: PLC0415 (imports torch)

    model, text = Path(str(options.pop("model"))), options.pop("text")
    watermark = Watermark(**options)  # type: ignore[arg-type]
    detection = detect_in_file(None if text is None else Path(str(text)), model, watermark)
    sys.stdout.write(json.dumps(dataclasses.asdict(detection)) + "\n")


def _evaluate(options: dict[str, object]) -> None:
    import msgspec  # noqa: PLC0415

    from bakeoff.reference_engine.tools.model_evaluation import EvaluationConfig, evaluate  # noqa: PLC0415 (imports torch)

    settings = {name: options.pop(name) for name in _EVALUATE_FLAGS}
    model = EngineConfig(**settings, max_num_seqs=1, enable_prefix_caching=False)  # type: ignore[arg-type]
    for line in evaluate(EvaluationConfig(model, **options)):  # type: ignore[arg-type]
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()


def _prune(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.pruning import Pruning, prune  # noqa: PLC0415 (imports torch)

    source, target, text, device = (options.pop(name) for name in ("source", "target", "text", "device"))
    pruning = Pruning(**options)  # type: ignore[arg-type]
    prune(source, target, pruning, text=text, device=device, say=_say)  # type: ignore[arg-type]


def _distil(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.distillation import Distillation, distil  # noqa: PLC0415 (imports torch)

    names = ("teacher", "student", "target", "text", "device")
    teacher, student, target, text, device = (options.pop(name) for name in names)
    distillation = Distillation(**options)  # type: ignore[arg-type]
    distil(teacher, student, target, distillation, text=text, device=device, say=_say)  # type: ignore[arg-type]


def _trim(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.vocabulary_trimming import trim  # noqa: PLC0415 (imports torch)

    trim(**options, say=_say)  # type: ignore[arg-type]


def _eagle(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.head_training import HeadTraining, train_head  # noqa: PLC0415 (imports torch)

    model, target, text, device = (options.pop(name) for name in ("model", "target", "text", "device"))
    training = HeadTraining(**options)  # type: ignore[arg-type]
    train_head(model, target, training, text=text, device=device, say=_say)  # type: ignore[arg-type]


def _quantize(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.quantisation_methods import Quantising  # noqa: PLC0415 (imports torch)
    from bakeoff.reference_engine.tools.quantising import quantise  # noqa: PLC0415

    source, target, text, device = (options.pop(name) for name in ("source", "target", "text", "device"))
    if options["method"] in get_args(GgufName):
        from bakeoff.reference_engine.tools.gguf_export import write_gguf  # noqa: PLC0415
        from bakeoff.reference_engine.tools.unfinished import flag  # noqa: PLC0415

        method = options.pop("method")
        for name in ("group_size", "act_order", "asymmetric", "smoothing", "budget_mb"):
            if options[name]:
                raise ConfigError(f"{flag(name)} means nothing to --method {method}; leave it out")
        write_gguf(source, target, method, say=_say)  # type: ignore[arg-type]
        return
    quantising = Quantising(**options)  # type: ignore[arg-type]
    quantise(source, target, quantising, text=text, device=device, say=_say)  # type: ignore[arg-type]


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


_COMMANDS = {
    "serve": _serve,
    "convert": _convert,
    "score": _score,
    "perplexity": _perplexity,
    "watermark": _watermark,
    "evaluate": _evaluate,
    "prune": _prune,
    "distil": _distil,
    "trim": _trim,
    "eagle": _eagle,
    "quantize": _quantize,
}

if __name__ == "__main__":
    sys.exit(main())
