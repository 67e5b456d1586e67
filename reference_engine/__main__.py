"""The command line: `serve` and `convert`. Exit status 0 done, 1 our fault, 2 the caller's, with one line on stderr."""

import argparse
import asyncio
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from reference_engine.config import EngineConfig
from reference_engine.errors import ReferenceEngineError, UserMistakeError

_CONVERT_DTYPES = ("bfloat16", "float16", "float32")


def build_parser() -> argparse.ArgumentParser:
    """The flags; those of `serve` are the fields of EngineConfig."""
    parser = argparse.ArgumentParser(prog="python -m reference_engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="OpenAI-compatible HTTP server for one model")
    for field in dataclasses.fields(EngineConfig):
        _add_flag(serve, field)
    convert = commands.add_parser("convert", help="GGUF file to Hugging Face checkpoint directory")
    convert.add_argument("source", type=Path, metavar="SRC.gguf")
    convert.add_argument("target", type=Path, metavar="OUT_DIR")
    convert.add_argument("--dtype", choices=_CONVERT_DTYPES, default="bfloat16", help="of the weights; %(default)s")
    return parser


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
        type=int if int in (kind, *get_args(kind)) else str,
        choices=get_args(kind) if get_origin(kind) is Literal else None,
        default=None if is_required else field.default,
        help=described,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    options = vars(build_parser().parse_args(arguments))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
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
    from reference_engine.loading.checkpoint import check_model_path  # noqa: PLC0415 (not needed for --help)
    from reference_engine.server import serve  # noqa: PLC0415
    from reference_engine.service import Service  # noqa: PLC0415

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
    from reference_engine.loading.convert import convert_gguf  # noqa: PLC0415 (imports torch)

    convert_gguf(**options, progress=lambda line: sys.stderr.write(line + "\n"))  # type: ignore[arg-type]


_COMMANDS = {"serve": _serve, "convert": _convert}

if __name__ == "__main__":
    sys.exit(main())
