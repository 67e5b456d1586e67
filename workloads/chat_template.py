"""Chat templates of checkpoints, with what Transformers gives to them.

Source: ``apply_chat_template`` and ``chat_template_utils`` of https://github.com/huggingface/transformers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bakeoff.workloads.errors import BadTokenizer, NoTokenizer

_DEFAULT = "default"
_ABSENT = dict.fromkeys(("tools", "documents", "reasoning_effort"))
"""Variables that Transformers defines as None, which templates test for."""


class ChatTemplate:
    """The chat template of a checkpoint.

    Args:
        folder: of the checkpoint; its ``chat_template.jinja`` or ``chat_template.json`` wins over its configuration.
        config: content of ``tokenizer_config.json``.

    Raises:
        NoTokenizer: it has none.
        BadTokenizer: it has several and none is called default, or it is not a template.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._place, text = _found(folder, config)
        self._template = self._checked(lambda: _environment().from_string(text))
        tokens = {name: config.get(name) or "" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        self._tokens = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}

    def render(self, messages: Sequence[Mapping[str, Any]], tools: list[Any] | None = None) -> str:
        """The conversation as the model reads it, up to the beginning of the answer.

        Raises:
            BadTokenizer: the template fails, or refuses the conversation.
        """
        return self._checked(
            lambda: self._template.render(
                **_ABSENT | {"tools": tools},
                **self._tokens,
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
            )
        )

    def _checked(self, work: "Callable[[], Any]") -> Any:  # noqa: ANN401  (whatever the work returns)
        try:
            return work()
        except Exception as error:  # a template can raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadTokenizer(
                f"the chat template of {self._place} fails: {reason}; correct it, or choose a workload that sends "
                "completions, such as random"
            ) from error


def _found(folder: Path, config: Mapping[str, Any]) -> tuple[Path, str]:
    """Where the template is, and its text."""
    separate, wrapped = folder / "chat_template.jinja", folder / "chat_template.json"
    place, template = folder / "tokenizer_config.json", config.get("chat_template")
    if separate.is_file():
        place, template = separate, separate.read_text(encoding="utf-8")
    elif template is None and wrapped.is_file():
        place, template = wrapped, json.loads(wrapped.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        if _DEFAULT not in named:
            raise BadTokenizer(
                f"{place} has several chat templates and none is called {_DEFAULT}: {', '.join(named)}; write the one "
                "to use into chat_template.jinja beside it"
            )
        template = named[_DEFAULT]
    if not isinstance(template, str):
        raise NoTokenizer(f"{folder} has no chat template; use a workload that sends completions, such as random")
    return place, template


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Any] = {"raise_exception": _raise, "strftime_now": _now}
    environment.globals.update(functions)
    return environment


def _to_json(value: Any, indent: int | None = None, **more: Any) -> str:  # noqa: ANN401  (any JSON value)
    """JSON with keys in order and nothing escaped; Jinja's own filter sorts keys and escapes HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **more)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005  (local time, as in Transformers)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's part for training; the text is the same."""

    tags = {"generation"}  # noqa: RUF012  # pyright: ignore[reportIncompatibleUnannotatedOverride]  (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The marked part alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
