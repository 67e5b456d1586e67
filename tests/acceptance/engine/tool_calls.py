"""Calls of functions come out of the server as the model wrote them, in the format of every template it reads.

    python -m tests.acceptance.engine.tool_calls [--functions-file BFCL_v4_simple_python.json.gz] [--functions 60]

Functions are made up, or those of the Berkeley Function Calling Leaderboard (gorilla.cs.berkeley.edu); arguments
are made up to fit their schemas, with quotes, braces and marks of the formats in strings. A stub in place of the model
answers each chat with a call, written in the format; OpenAI's package asks, whole and in a stream. The last line of the
output is one JSON object; the exit status is 0 if every goal is met.
"""

import argparse
import asyncio
import gzip
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import openai
from aiohttp.test_utils import TestServer

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.engine.runner import Collected
from bakeoff.reference_engine.loading import tokenizer as tokenizer_module
from bakeoff.reference_engine.loading.tokenizer import Tokenizer, open_tokenizer
from bakeoff.reference_engine.serving.core import loop as core_loop
from bakeoff.reference_engine.serving.server import make_app
from bakeoff.reference_engine.serving.service import Service
from benchmarks.bars import Bars, model_argument
from tests.reference_engine.conftest import ThreadCore

_SHOWN = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{{ messages[-1].content }}"
_NASTY = ('say "hi"', "a } b ] c", "</tool_call>", "[ARGS]{ <call>", "naïve ✓\n\ttab", "\\", "7", "true")


def _object(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def _tags(name: str, arguments: str) -> str:
    values = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in json.loads(arguments).items()
    }
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


FORMATS = {
    "hermes": ("<tool_call>", lambda name, arguments: f"<tool_call>\n{_object(name, arguments)}\n</tool_call>"),
    "qwen3-coder": ("<tool_call><function=", _tags),
    "mistral": ("[TOOL_CALLS]", lambda name, arguments: f"[TOOL_CALLS][{_object(name, arguments)}]"),
    "mistral v11": ("[TOOL_CALLS]", lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{arguments}"),
    "llama 3": ('"parameters"', lambda name, arguments: f'{{"name": "{name}", "parameters": {arguments}}}'),
    "deepseek v3": (
        "<\uff5ctool▁calls▁begin\uff5c>",
        lambda name, arguments: (
            f"<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>{name}\n```json\n{arguments}\n```"
            "<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>"
        ),
    ),
    "phi-4-mini": ("<|tool|>", lambda name, arguments: f"<|tool_call|>[{_object(name, arguments)}]<|/tool_call|>"),
    "gpt-oss": (
        "<|channel|><|message|>",
        lambda name, arguments: (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
            f"to=functions.{name} <|constrain|>json<|message|>{arguments}"
        ),
    ),
}
"""For each format what its templates contain, and how it writes a call."""


def _functions(path: Path | None, count: int) -> list[dict[str, Any]]:
    if path is None:
        kinds = ("string", "integer", "number", "boolean", "array", "object")
        return [
            {
                "name": f"area.function_{number}",
                "parameters": {
                    "type": "object",
                    "properties": {f"p{i}": {"type": kinds[(number + i) % 6]} for i in range(number % 5)},
                },
            }
            for number in range(count)
        ]
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["function"][0] for line, _ in zip(file, range(count), strict=False)]


def _standard(schema: object) -> object:
    """The leaderboard's types under the names of JSON schema."""
    names = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
    if isinstance(schema, dict):
        return {key: names.get(part, part) if key == "type" and isinstance(part, str) else _standard(part)
                for key, part in schema.items()}  # fmt: skip
    return [_standard(part) for part in schema] if isinstance(schema, list) else schema


def _made_up(schema: Mapping[str, Any], rng: random.Random) -> Any:
    match schema.get("type"):
        case "object":
            return {key: _made_up(part, rng) for key, part in schema.get("properties", {}).items()}
        case "array":
            return [_made_up(schema.get("items", {}), rng) for _ in range(2)]
        case "integer":
            return rng.randrange(-99, 10**6)
        case "number":
            return round(rng.uniform(-1, 1), 3)
        case "boolean":
            return rng.random() < 0.5
        case _:
            return rng.choice(_NASTY)


class Stub:
    """Takes the place of the model: each sampled token is the next of `left`."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def load(self, config: EngineConfig) -> tuple[Any, Any]:
        """Loads the engine and takes the place of its runner."""
        engine, facts = core_loop.load(config)
        engine.core._runner = self
        return engine, facts

    def launch(self, step: Any, _: object) -> Collected:
        """The next token of each sequence that samples."""
        return Collected([(SampledToken(self.left.pop(0)),) for chunk in step.chunks if chunk.is_sampled])


async def _check(model: str, mark: str, write: Any, functions: list[dict[str, Any]]) -> int:
    """Calls that did not come back as they were written."""
    plain, stub, rng, wrong = open_tokenizer(Path(model)), Stub(), random.Random(50), 0
    end = plain.eos_token_id
    told = Tokenizer(plain.backend, plain.special_tokens, _SHOWN + "{# " + mark + " #}")
    with mock.patch.object(tokenizer_module, "tokenizer_of_directory", return_value=told):
        config = EngineConfig(model=model, num_blocks=256, max_model_len=2048, dtype="bfloat16", threads=1)
        service = Service(config, lambda config, _: ThreadCore(config, stub.load))
        server = TestServer(make_app(service))
        await server.start_server()
        await service.load()
        client = openai.AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="x", max_retries=0)
        for function in functions:
            schema = _standard(function["parameters"])
            arguments = json.dumps(_made_up(schema, rng), ensure_ascii=rng.random() < 0.5)
            ids = plain.encode(write(function["name"], arguments))
            asked = {
                "model": service.config.model_name,
                "messages": [{"role": "user", "content": "call it"}],
                "tools": [{"type": "function", "function": {**function, "parameters": schema}}],
                "max_tokens": len(ids) + 1,
            }
            stub.left = [*ids, end, *ids, end]
            whole = (await client.chat.completions.create(**asked)).choices[0]
            pieces = []
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                pieces += chunk.choices[0].delta.tool_calls or []
            streamed = "".join(piece.function.arguments or "" for piece in pieces)
            calls = [
                (call.function.name, json.loads(call.function.arguments)) for call in whole.message.tool_calls or []
            ]
            calls += [(pieces[0].function.name, json.loads(streamed))] if pieces else []
            is_right = calls == [(function["name"], json.loads(arguments))] * 2 and whole.finish_reason == "tool_calls"
            wrong += not is_right
            if not is_right:
                print(f"  wrong: {write(function['name'], arguments)!r}: {calls} {whole.finish_reason}")
        await service.stop()
        await server.close()
    return wrong


def main() -> None:
    """Checks all formats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--functions-file", type=Path, help="JSON lines, compressed; made-up functions without it")
    parser.add_argument("--functions", type=int, default=60)
    arguments = parser.parse_args()
    functions = _functions(arguments.functions_file, arguments.functions)
    bars = Bars()
    for name, (mark, write) in FORMATS.items():
        wrong = asyncio.run(_check(arguments.model, mark, write, functions))
        print(f"{name}: {len(functions)} calls, {wrong} wrong")
        bars.add(f"wrong_calls_{name.replace(' ', '_')}", wrong, "<=", 0)
    bars.finish()


if __name__ == "__main__":
    main()
