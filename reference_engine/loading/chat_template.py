"""Renders a checkpoint's Jinja chat template the way Hugging Face does, in a sandbox: templates are untrusted input.

Behaviour follows transformers' `utils/chat_template_utils.py` (5.23): immutable sandbox, trimmed blocks, loop
controls, `raise_exception`, `strftime_now`, and a `tojson` that leaves non-ASCII and HTML characters alone.
"""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bakeoff.reference_engine.errors import CheckpointError, RequestError


class ChatTemplate:
    """One compiled template; `render` is pure except for `strftime_now`.

    Args:
        source: the template's Jinja text.
        special_tokens: names such as `bos_token` and their text, visible to the template.

    Raises:
        CheckpointError: the template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(source, globals=_FUNCTIONS)
        except TemplateError as error:
            raise CheckpointError(f"the checkpoint's chat template is not valid Jinja: {error}") from error
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """Renders the prompt text for `messages`.

        Raises:
            RequestError: the template refuses these messages (by `raise_exception`, or because a field is missing).
        """
        names = self._special_tokens | variables
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **names)
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}", param="messages") from error


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now(tz=dt.UTC).astimezone().strftime(pattern)


_FUNCTIONS = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
