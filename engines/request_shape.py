"""What requests carry besides the workload's prompt and length: sampling, reasoning, tools, other fields, headers."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bakeoff.engines.deployment import header_problem
from bakeoff.engines.dialects import (
    REQUEST_ID,
    SESSION_ID,
    CarriesFields,
    Dialect,
    EventReader,
    HttpRequest,
    TakesTokenIds,
)
from bakeoff.engines.dialects.failures import clip
from bakeoff.engines.dialects.fields import Carriers, Sampled
from bakeoff.engines.dialects.openai import OpenAiDialect, passages_request
from bakeoff.engines.errors import BadOption
from bakeoff.engines.secrets import names_secret
from bakeoff.workloads.types import Message, Turn

_WHOLE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
_IDS = {"x-session-id": SESSION_ID, "x-request-id": REQUEST_ID}
_SHOWN_CHARS = 60
_FIXED = {
    **dict.fromkeys(("messages", "prompt", "input", "inputs", "text_input"), "the workload writes it; choose another"),
    **dict.fromkeys(("stream", "streaming"), "answers are timed token by token; set stream (--no-stream of bench)"),
    "model": "give the model's name (model.name, or --model of bench)",
}
"""Fields that nobody may change or leave out, and why."""
_OF_LENGTH = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict")
_OF_TRANSPORT = frozenset({"connection", "content-length", "host", "transfer-encoding"})
_PLACEHOLDER = re.compile(r"\{[A-Za-z_]*\}")
_NO_SETTINGS = frozenset({"body", "omit", "stream", "headers"})
_MAX_VALUE = 1e6
_RANGES = {
    "temperature": (0, _MAX_VALUE),
    "top_p": (0, 1),
    "top_k": (-1, _MAX_VALUE),
    "min_p": (0, 1),
    "frequency_penalty": (-_MAX_VALUE, _MAX_VALUE),
    "presence_penalty": (-_MAX_VALUE, _MAX_VALUE),
    "repetition_penalty": (1 / _MAX_VALUE, _MAX_VALUE),
    "thinking_tokens": (0, _MAX_VALUE),
}
"""Least and greatest value of a setting."""


class RequestShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What requests carry besides the workload's prompt and length; by default they ask for greedy decoding."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    """Seed of the engine's sampling, the same in each request."""
    stop: list[str] | None = None
    reasoning_effort: str | None = None
    """``none``, ``low``, ``high``, … as the model knows them."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template, such as ``enable_thinking``."""
    tools: list[dict[str, Any]] | None = None
    """Functions in the form of OpenAI's chats; other formats get them in theirs."""
    tool_choice: str | dict[str, Any] | None = None
    body: dict[str, Any] = {}
    """Merged into the body as it is (JSON merge patch, RFC 7396): tables recursively; null leaves a field out."""
    omit: list[str] = []
    """Fields to leave out, with dots for nesting, since TOML has no null."""
    stream: bool = True
    """Whether answers are streamed; if not, there is no time to the first token, and only their end is timed."""
    headers: dict[str, str] = {}
    """Headers of each request; ``{session}`` and ``{request}`` become ids. Default: ``X-Session-ID`` and
    ``X-Request-ID``; an empty value leaves a header out."""

    def settings(self) -> dict[str, Any]:
        """The settings that have a value, by name; each format spells them in its own way."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _NO_SETTINGS}
        return {name: value for name, value in values.items() if value is not None}

    def under(self, own: "RequestShape") -> "RequestShape":
        """A copy in which ``own`` takes precedence, key by key."""
        kept = [path for path in self.omit if path not in own.settings() and not _has(own.body, path)]
        left_out = dict.fromkeys(name for name in own.omit if name in self.settings())
        replaced = (*own.omit, *own.settings())
        shared_body = {name: value for name, value in self.body.items() if name not in replaced}
        return msgspec.structs.replace(
            self,
            **left_out | own.settings(),
            body=_combined(shared_body, own.body),
            omit=[*dict.fromkeys([*kept, *own.omit])],
            stream=self.stream and own.stream,
            headers={**self.headers, **own.headers},
        )

    def canonical(self) -> "RequestShape":
        """The shape without a temperature of 0, which plain requests have too."""
        return self if self.temperature else msgspec.structs.replace(self, temperature=None)

    @property
    def changes_answers(self) -> bool:
        """Whether answers may differ from those of plain greedy requests."""
        return bool(self.canonical().settings() or self.body or self.omit)

    def described(self) -> str:
        """What the requests carry, in one line; empty for plain requests."""
        settings = [f"{name} {_short(value)}" for name, value in self.settings().items()]
        body = [f"{name} {'left out' if value is None else _short(value)}" for name, value in self.body.items()]
        omitted = [f"{name} left out" for name in self.omit]
        headers = [f"header {name} {_short(value) if value else 'left out'}" for name, value in self.headers.items()]
        whole = [] if self.stream else ["stream false"]
        parts = [*settings, *body, *omitted, *whole, *headers]
        return f"requests carry {', '.join(parts)}" if parts else ""

    def problem(self) -> str | None:
        """What no engine can be sent, or None."""
        found = itertools.chain(self._setting_problems(), self._body_problems(), self._header_problems())
        return next(found, header_problem(self.headers))

    def _setting_problems(self) -> Iterator[str]:
        for name, (least, greatest) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= greatest:
                yield f"{name} must be between {least:g} and {greatest:g}, not {value:g}"
        if self.reasoning_effort == "":
            yield "reasoning_effort is empty; leave it out for the server's default"

    def _body_problems(self) -> Iterator[str]:
        for name, value in self.body.items():
            if name in _OF_LENGTH and value is not None:
                yield f"'{name}' cannot be set: the workload gives each answer its length; change the workload"
            if name == "n" and value != 1:
                yield "'n' cannot be changed: each request is one measured answer"
        for name in (*self.body, *self.omit):
            if name in _FIXED:
                yield f"'{name}' cannot be changed: {_FIXED[name]}"
        for name in self.omit:
            if name in self.settings() or name in self.body:
                yield f"'{name}' is both set and left out"
        if not _is_json([self.body, self.settings()]):
            yield "it has a value that JSON cannot hold, such as nan or a date"

    def _header_problems(self) -> Iterator[str]:
        for name, count in Counter(map(str.lower, self.headers)).items():
            if count > 1:
                yield f"the header {name} is given {count} times; give it once"
        for name, value in self.headers.items():
            unknown = [found for found in _PLACEHOLDER.findall(value) if found not in {SESSION_ID, REQUEST_ID}]
            if unknown:
                yield f"the header {name} has {unknown[0]}; the placeholders are {SESSION_ID} and {REQUEST_ID}"
            if names_secret(name):
                yield f"the header {name} would be stored; give a key by api_key_env or headers of the engine"
            if name.lower() in _OF_TRANSPORT:
                yield f"the client sets the header {name}; remove it"


class ShapedDialect:
    """A dialect whose requests carry what a user adds, changes or leaves out.

    Args:
        dialect: of the engine.
        shape: of the requests.

    Raises:
        BadOption: the shape is one that no engine can be sent.
    """

    def __init__(self, dialect: Dialect, shape: RequestShape) -> None:
        if problem := shape.problem():
            raise BadOption(f"request: {problem}")
        self.plain = dialect
        self.shape: RequestShape = shape.canonical()
        self.name, self.exact_length = dialect.name, dialect.exact_length
        self.ends_by_closing, self.takes_messages = dialect.ends_by_closing, dialect.takes_messages
        self.takes_token_ids: bool = isinstance(dialect, TakesTokenIds) and dialect.takes_token_ids
        headers = _IDS | {name.lower(): value for name, value in shape.headers.items()}
        self._headers = {name: value for name, value in headers.items() if value}

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """The dialect's request, changed; headers may have placeholders.

        Raises:
            BadOption: the format has no field for a setting, or the request has none of a name to leave out.
        """
        plain = self._plain_request(turn, model, logprobs=logprobs)
        headers = {**plain.headers, **self._headers}
        if not self.shape.changes_answers and turn.tools is None:
            return HttpRequest(plain.path, headers, plain.body, plain.is_streamed)
        body = msgspec.json.decode(plain.body)
        carriers: Carriers = {}
        if isinstance(self.plain, CarriesFields) and turn.passages is None:
            carriers = self.plain.carriers(turn)
        recorded = {} if turn.tools is None else {"tools": msgspec.json.decode(turn.tools)}
        for name, value in {**recorded, **self.shape.settings()}.items():
            if name not in carriers:
                raise BadOption(
                    f"request: {_kind(turn)} of the {self.name} format have no field for {name}; put the field that "
                    "the server reads into body (--extra-body of bench), or leave it out"
                )
            carriers[name](body, value)
        for path in _removed(self.shape.body):
            _require(body, path)
        body = _merged(body, self.shape.body)
        if isinstance(temperature := carriers.get("temperature"), Sampled):
            temperature.settle(body, {**self.shape.settings(), **self.shape.body})
        for path in self.shape.omit:
            _require(body, path)
            _remove(body, path)
        return HttpRequest(plain.path, headers, msgspec.json.encode(body), plain.is_streamed)

    def _plain_request(self, turn: Turn, model: str, *, logprobs: bool) -> HttpRequest:
        """The dialect's request, streamed or not.

        Raises:
            BadOption: the format has no such request.
        """
        if turn.passages is not None:
            if not isinstance(self.plain, OpenAiDialect):
                raise BadOption(f"the {self.name} format has no embeddings and no ranks")
            return passages_request(turn, model)
        if self.shape.tools and turn.tools is None:  # an answer that may call them ends by itself
            turn = msgspec.structs.replace(turn, tools=msgspec.json.encode(self.shape.tools).decode())
        plain = self.plain.request(turn, model, logprobs=logprobs)
        if self.shape.stream:
            return plain
        if plain.path not in _WHOLE_PATHS:
            raise BadOption(f"request: {_kind(turn)} of the {self.name} format are always streamed; leave out stream")
        body = msgspec.json.decode(plain.body)
        body.pop("stream_options", None)
        return HttpRequest(
            plain.path, {**plain.headers, "accept": "application/json"},
            msgspec.json.encode({**body, "stream": False}), is_streamed=False,
        )  # fmt: skip

    def check(self) -> None:
        """Refuse a shape that neither a chat nor a completion can have.

        Raises:
            BadOption: as :meth:`request`.
        """
        if not self.shape.changes_answers:
            return
        problems: list[BadOption] = []
        for turn in (Turn(1, 1, messages=(Message("user", "a"),)), Turn(1, 1, prompt="a")):
            try:
                self.request(turn, "m")
            except BadOption as error:
                problems.append(error)
            else:
                return
        raise problems[0]

    def reader(self) -> EventReader:
        return self.plain.reader()

    def refusal(self, status: int, body: bytes) -> str:
        return self.plain.refusal(status, body)


def plain_dialect(dialect: Dialect) -> Dialect:
    """The format alone, without what a user adds to requests."""
    return dialect.plain if isinstance(dialect, ShapedDialect) else dialect


def shape_of(dialect: Dialect) -> RequestShape:
    """What a user adds to requests of this dialect."""
    return dialect.shape if isinstance(dialect, ShapedDialect) else RequestShape()


def _kind(turn: Turn) -> str:
    if turn.passages is not None:
        return "ranks" if turn.prompt is not None else "embeddings"
    return "completions" if turn.messages is None else "chats"


def _combined(patch: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Two merge patches as one: the second one wins."""
    result = dict(patch)
    for name, value in own.items():
        inner = result.get(name)
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[name] = _combined(inner, value) if both else value  # pyright: ignore[reportArgumentType]
    return result


def _merged(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401  (any JSON value)
    """The result of a JSON merge patch (RFC 7396)."""
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value) if isinstance(value, Mapping) else value
    return result


def _removed(patch: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of the fields that a merge patch leaves out."""
    for name, value in patch.items():
        if value is None:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping):
            yield from _removed(value, f"{prefix}{name}.")


def _is_json(value: Any) -> bool:  # noqa: ANN401  (whatever TOML holds)
    try:
        return msgspec.json.decode(msgspec.json.encode(value)) == value
    except (msgspec.MsgspecError, OverflowError, TypeError, RecursionError):
        return False


def _short(value: Any) -> str:  # noqa: ANN401  (any JSON value)
    return clip(value.encode() if isinstance(value, str) else msgspec.json.encode(value), _SHOWN_CHARS)


def _has(body: Any, path: str) -> bool:  # noqa: ANN401  (any JSON value)
    name, _, inner = path.partition(".")
    return isinstance(body, dict) and name in body and (not inner or _has(body[name], inner))


def _require(body: Mapping[str, Any], path: str) -> None:
    if not _has(body, path):
        raise BadOption(f"request: there is no '{path}' to leave out; the fields are {', '.join(body)}")


def _remove(body: dict[str, Any], path: str) -> None:
    *outer, name = path.split(".")
    for key in outer:
        body = body[key]
    del body[name]


def reshaped(dialect: Dialect, own: RequestShape) -> ShapedDialect:
    """The dialect with a shape of its own, which takes precedence over the one that it has.

    Raises:
        BadOption: the shape is one that no engine can be sent.
    """
    return ShapedDialect(plain_dialect(dialect), shape_of(dialect).under(own))
