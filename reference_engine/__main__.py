"""The command line of the engine: `serve`, and tools for models and texts.

Exit status 0 done, 1 our fault, 2 the caller's; a line on stderr.
"""

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.quantization_names import GgufName, WrittenName
from bakeoff.reference_engine.core.request import Watermark
from bakeoff.reference_engine.engine.memory import share_one_arena
from bakeoff.reference_engine.engine.waiting import spin_briefly
from bakeoff.reference_engine.errors import ConfigError, ReferenceEngineError, UserMistakeError

_DTYPES = ("bfloat16", "float16", "float32")
_PERPLEXITY_FLAGS = (
    "model", "dtype", "quantization", "device", "threads", "max_model_len", "block_size", "kv_cache_dtype",
    "attention_window", "attention_sinks", "ablation",
)  # fmt: skip
_EVALUATE_FLAGS = ("model", "dtype", "device", "threads", "kv_cache_dtype")


_CHECKPOINT = "Hugging Face checkpoint directory; for bakeoff models also the name of a known model"
_TEXT = "UTF-8 file (default: standard input, which bakeoff models fills with generated prompts)"


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists the options\n")


class _Tool(NamedTuple):
    """A command that writes a checkpoint.

    Attributes:
        summary: one line for the list of commands.
        description: what its help begins with.
        models: names of its positional arguments.
        module: of `tools`, with its settings and function.
        settings: dataclass whose fields are its options.
        run: the function; it takes the models, the target and the settings.
    """

    summary: str
    description: str
    models: tuple[str, ...]
    module: str
    settings: str
    run: str


_RESUMES = "Ctrl-C keeps what is done; the same command resumes it."
_TOOLS = {
    "prune": _Tool(
        "a smaller checkpoint, by what matters least on a text",
        "Remove the layers, neurons, heads and weights of a model that matter least on a text (docs/pruning.md).",
        ("model",), "pruning", "Pruning", "prune",
    ),
    "distil": _Tool(
        "train a student to predict as a teacher does",
        f"Distil a student from text that its teacher generates (docs/pruning.md). {_RESUMES}",
        ("teacher", "student"), "distillation", "Distillation", "distil",
    ),
    "eagle": _Tool(
        "train an EAGLE-3 draft head for a model",
        f"Train an EAGLE-3 draft head on text that its model writes (docs/pruning.md). {_RESUMES}",
        ("model",), "head_training", "HeadTraining", "train_head",
    ),
    "quantize": _Tool(
        "a checkpoint whose matrices take fewer bits",
        f"Quantise the weights of a model, one layer at a time (docs/quantisation.md). With a method in gguf-, --out "
        f"is a .gguf file. {_RESUMES}",
        ("model",), "quantising", "Quantising", "quantise",
    ),
}  # fmt: skip


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Builds the parser. The options of `serve` and of the tools are the fields of their settings.

    Args:
        command: the one to parse; the options of other tools are left out, since their settings import torch.
    """
    parser = _Parser(prog="python -m bakeoff.reference_engine", description=__doc__)

    def prog(name: str) -> str:
        return f"bakeoff models {name}"

    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="OpenAI-compatible HTTP server for one model")
    for field in dataclasses.fields(EngineConfig):
        _add_flag(serve, EngineConfig, field)
    serve.add_argument(
        "--api-key",
        help="that requests must carry as a bearer token; the process list shows it, unlike the environment variable "
        "REFERENCE_ENGINE_API_KEY (default: none)",
    )
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
            _add_flag(perplexity, EngineConfig, field)
    watermark = commands.add_parser("watermark", help="whether a text has one: counts, z-score, p-value in a JSON line")
    watermark.add_argument("--model", type=Path, required=True, help="whose tokenizer: checkpoint directory or .gguf")
    watermark.add_argument("--text", type=Path, help="UTF-8 file, without its prompt (default: standard input)")
    default = Watermark()
    watermark.add_argument("--gamma", type=float, default=default.gamma, help="as in the request; %(default)s")
    watermark.add_argument("--key", type=int, default=default.key, help="as in the request; %(default)s")
    _add_evaluate(
        commands.add_parser("evaluate", help="a model beside a reference, for bakeoff models eval: JSON lines")
    )
    trim = commands.add_parser("trim", prog=prog("trim"), help="list the tokens that a draft model proposes, by a text")
    trim.add_argument("folder", type=Path, metavar="DRAFT", help=_CHECKPOINT)
    trim.add_argument("--rows", type=int, default=8192, help="number of tokens to keep (default: %(default)s)")
    trim.add_argument("--text", type=Path, help=f"like the answers to draft: {_TEXT}")
    for name, tool in _TOOLS.items():
        added = commands.add_parser(name, prog=prog(name), help=tool.summary, description=tool.description)
        if name == command:
            _add_tool(added, name)
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
            _add_flag(evaluate, EngineConfig, field)


def _add_tool(tool: argparse.ArgumentParser, name: str) -> None:
    """Models, settings and target of a tool; the module of its settings is imported now, which takes seconds."""
    declared = _TOOLS[name]
    for model in declared.models:
        tool.add_argument(model, type=Path, metavar=model.upper(), help=_CHECKPOINT)
    settings = getattr(import_module(f"bakeoff.reference_engine.tools.{declared.module}"), declared.settings)
    for field in dataclasses.fields(settings):
        choices = (*get_args(WrittenName), *get_args(GgufName)) if field.name == "method" else None
        _add_flag(tool, settings, field, choices)
    tool.add_argument("--out", dest="target", type=Path, required=True, help="directory to write")
    tool.add_argument("--text", type=Path, help=_TEXT)
    tool.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda if there is one")


def _add_flag(
    parser: argparse.ArgumentParser,
    settings: type,
    field: "dataclasses.Field[object]",
    choices: Sequence[str] | None = None,
) -> None:
    """One field of a dataclass as a flag; its annotation is Annotated[type, help text]."""
    kind, text = get_args(get_type_hints(settings, include_extras=True)[field.name])
    is_required = field.default is dataclasses.MISSING
    has_default = not is_required and field.default is not None
    flag = f"--{field.name.replace('_', '-')}"
    described = f"{text} (default: %(default)s)" if has_default else text
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default, help=described)
        return
    literals = next((part for part in (kind, *get_args(kind)) if get_origin(part) is Literal), None)
    parser.add_argument(
        flag,
        required=is_required,
        type=next((number for number in (int, float) if number in (kind, *get_args(kind))), str),
        choices=choices or (get_args(literals) if literals else None),
        default=None if is_required else field.default,
        help=described,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    options = vars(build_parser(words[0] if words else None).parse_args(words))
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
    from bakeoff.reference_engine.serving.openai_api.access import KEY_VARIABLE  # noqa: PLC0415
    from bakeoff.reference_engine.serving.server import serve  # noqa: PLC0415
    from bakeoff.reference_engine.serving.service import Service  # noqa: PLC0415

    share_one_arena()
    spin_briefly()
    api_key = options.pop("api_key")
    if api_key == "":
        raise ConfigError("--api-key is empty; give a key, or leave the option out")
    api_key = api_key or os.environ.get(KEY_VARIABLE) or None
    config = EngineConfig(**options)  # type: ignore[arg-type]
    check_model_path(Path(config.model))
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(serve(Service(config), None if api_key is None else str(api_key)))


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


def _trim(options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.vocabulary_trimming import trim  # noqa: PLC0415 (imports torch)

    trim(**options, say=_say)  # type: ignore[arg-type]


def _run_tool(name: str, options: dict[str, object]) -> None:
    tool = _TOOLS[name]
    models = [options.pop(model) for model in tool.models]
    target, text, device = (options.pop(option) for option in ("target", "text", "device"))
    if options.get("method") in get_args(GgufName):
        _write_gguf(models[0], target, options)
        return
    module = import_module(f"bakeoff.reference_engine.tools.{tool.module}")
    settings = getattr(module, tool.settings)(**options)
    getattr(module, tool.run)(*models, target, settings, text=text, device=device, say=_say)


def _write_gguf(source: object, target: object, options: dict[str, object]) -> None:
    from bakeoff.reference_engine.tools.gguf_export import write_gguf  # noqa: PLC0415 (imports torch)
    from bakeoff.reference_engine.tools.unfinished import flag  # noqa: PLC0415

    for name in ("group_size", "act_order", "asymmetric", "smoothing", "budget_mb"):
        if options[name]:
            raise ConfigError(f"{flag(name)} means nothing to --method {options['method']}; leave it out")
    write_gguf(source, target, options["method"], say=_say)  # type: ignore[arg-type]


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


_COMMANDS = {
    "serve": _serve,
    "convert": _convert,
    "score": _score,
    "perplexity": _perplexity,
    "watermark": _watermark,
    "evaluate": _evaluate,
    "trim": _trim,
    **{name: partial(_run_tool, name) for name in _TOOLS},
}

if __name__ == "__main__":
    sys.exit(main())
