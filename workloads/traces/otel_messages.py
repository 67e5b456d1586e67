"""Attributes of a model's call in OpenTelemetry's conventions for generative AI: messages, tools and lengths."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bakeoff.workloads.traces.checks import MAX_TOKENS, quoted
from bakeoff.workloads.types import Message, ToolCall

Attributes = Mapping[str, Any]
_ROLES = {"developer": "system", "model": "assistant"}
"""Roles that chat templates know by another name."""
_TEXTS = ("text", "input_text", "output_text", "refusal")
_CALLS = ("tool_call", "tool_use", "function_call")
_RESULTS = ("tool_call_response", "tool_result", "function_call_output")
_NOT_SENT = ("reasoning", "thinking", "redacted_thinking")
_OPERATIONS = ("chat", "text_completion", "generate_content", "generate")
_OTHER_OPERATIONS = ("embeddings", "invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "retrieval")
_PROMPTS = ("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.prompt.0.role", "gen_ai.prompt.0.content")
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_NUMBERED = re.compile(r"(gen_ai\.prompt|gen_ai\.completion|llm\.request\.functions)\.(\d+)\.(.+)", re.ASCII)
_NUMBERED_CALL = re.compile(r"tool_calls\.(\d+)\.(id|name|arguments)", re.ASCII)


class _Function(msgspec.Struct, frozen=True):
    name: str = ""
    arguments: Any = None


class _Call(msgspec.Struct, frozen=True):
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    function: _Function | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str = "text"
    content: Any = None
    text: str | None = None
    id: str | None = None
    call_id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    response: Any = None
    result: Any = None
    output: Any = None


class _Message(msgspec.Struct, frozen=True):
    role: str | None = None
    parts: list[_Part | str] | None = None
    content: str | list[_Part | str] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    id: str | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: Any = None
    input_schema: Any = None
    function: dict[str, Any] | None = None


def is_call(name: str, attributes: Attributes) -> bool:
    """Whether a span of this name is a call of a model that generates text."""
    operation = attributes.get("gen_ai.operation.name")
    if operation in _OPERATIONS or operation in _OTHER_OPERATIONS:
        return operation in _OPERATIONS
    if name.startswith(_OTHER_OPERATIONS):
        return False
    return name.startswith("chat ") or any(attributes.get(key) for key in (*_PROMPTS, *_INPUT_TOKENS))


def messages_of(attributes: Attributes) -> tuple[Message, ...]:
    """The prompt, with the system's instructions first; empty if it is not recorded.

    Raises:
        ValueError: an attribute is not what it should be, or a message holds more than text and calls of functions.
    """
    prompt = attributes.get("gen_ai.input.messages") or attributes.get("gen_ai.prompt")
    messages = _messages("gen_ai.input.messages", prompt or _numbered(attributes, "gen_ai.prompt"), "user")
    instructions = attributes.get("gen_ai.system_instructions")
    if not messages or not instructions:
        return messages
    content = _loaded(instructions)
    system = {"role": "system", "content": content if isinstance(content, list | str) else [content]}
    return (*_messages("gen_ai.system_instructions", [system], "system"), *messages)


def answers_of(attributes: Attributes) -> tuple[Message, ...]:
    """The messages of the answer; empty if it is not recorded. Raises ValueError as :func:`messages_of`."""
    for key in ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion"):
        if value := attributes.get(key):
            form = value if key == "gen_ai.output.messages" else [{"content": value}]
            return _messages(key, form, "assistant")
    return _messages("gen_ai.completion", _numbered(attributes, "gen_ai.completion"), "assistant")


def answer_text(answers: tuple[Message, ...]) -> str:
    """Everything that the model wrote, calls included."""
    return "\n".join(
        text
        for answer in answers
        for text in (answer.content, *(f"{call.name}({call.arguments})" for call in answer.tool_calls))
        if text
    )


def tools_of(attributes: Attributes) -> str | None:
    """JSON list of the functions that the model may call, as OpenAI's chats have them; None for none.

    Raises:
        ValueError: the attribute is not a list of tools.
    """
    value = attributes.get("gen_ai.tool.definitions") or _numbered(attributes, "llm.request.functions")
    if not value:
        return None
    functions: list[dict[str, Any]] = []
    for tool in _converted("gen_ai.tool.definitions", _loaded(value), list[_Tool]):
        if tool.function:
            functions.append(tool.function)
        elif tool.name and tool.type in ("function", "custom"):
            parameters = _loaded(tool.parameters or tool.input_schema)
            fields = {"name": tool.name, "description": tool.description, "parameters": parameters or None}
            functions.append({key: field for key, field in fields.items() if field is not None})
    tools = [{"type": "function", "function": function} for function in functions]
    return msgspec.json.encode(tools).decode() if tools else None


def input_tokens(attributes: Attributes) -> int:
    """Recorded tokens of the prompt; 0 if they are not recorded. Raises ValueError as :func:`_tokens`."""
    return _tokens(attributes, _INPUT_TOKENS) or 0


def output_tokens(attributes: Attributes) -> int | None:
    """Recorded tokens of the answer; None if they are not recorded. Raises ValueError as :func:`_tokens`."""
    return _tokens(attributes, _OUTPUT_TOKENS)


def max_tokens(attributes: Attributes) -> int | None:
    """The longest answer that the call allowed; None if it is not recorded. Raises ValueError as :func:`_tokens`."""
    return _tokens(attributes, ("gen_ai.request.max_tokens",))


def _tokens(attributes: Attributes, keys: tuple[str, ...]) -> int | None:
    """The first of these attributes.

    Raises:
        ValueError: it is not a whole number from 0 to ``MAX_TOKENS``.
    """
    for key in keys:
        value = attributes.get(key)
        if value is None:
            continue
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if not isinstance(number, int | float) or not 0 <= number <= MAX_TOKENS or number != int(number):
            raise ValueError(f"{key} must be a whole number from 0 to {MAX_TOKENS}, not {quoted(str(value))}")
        return int(number)
    return None


def _messages(key: str, value: Any, role: str) -> tuple[Message, ...]:  # noqa: ANN401  (any JSON value)
    """Messages of an attribute: JSON or its text, a list of them or one; plain text is one message of ``role``."""
    loaded = _loaded(value)
    if not loaded:
        return ()
    if isinstance(loaded, str):
        loaded = [{"role": role, "content": loaded}]
    recorded = _converted(key, loaded if isinstance(loaded, list) else [loaded], list[_Message])
    return tuple(message for item in recorded for message in _written(item, role))


def _written(message: _Message, default_role: str) -> Iterator[Message]:
    """A recorded message as chats have it: results of tools first, each as a message of its own."""
    role = _ROLES.get(message.role or default_role, message.role or default_role)
    parts = message.parts if message.parts is not None else message.content
    texts: list[str] = [parts] if isinstance(parts, str) else []
    calls = [_call(call.id, call.function or call) for call in message.tool_calls or ()]
    has_result = False
    for part in parts if isinstance(parts, list) else ():
        kind = "text" if isinstance(part, str) else part.type
        if isinstance(part, str):
            texts.append(part)
        elif kind in _TEXTS:
            texts.append(_plain(part.content if part.text is None else part.text))
        elif kind in _CALLS:
            arguments = part.input if part.arguments is None else part.arguments
            calls.append(_call(part.call_id or part.id, _Call(name=part.name, arguments=arguments)))
        elif kind in _RESULTS:
            has_result = True
            results = (part.response, part.result, part.output, part.content)
            text = next((_plain(result) for result in results if result is not None), "")
            yield Message("tool", text, (), part.tool_use_id or part.call_id or part.id)
        elif kind not in _NOT_SENT:
            raise ValueError(f"a message has a part of type {quoted(kind)}; only text can be replayed")
    if texts or calls or not has_result:
        tool_call_id = message.tool_call_id or (message.id if role == "tool" else None)
        yield Message(role, "".join(texts), tuple(calls), tool_call_id)


def _call(name: str | None, function: _Call | _Function) -> ToolCall:
    arguments = function.arguments
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return ToolCall(name or "", function.name or "", text)


def _plain(value: Any) -> str:  # noqa: ANN401  (any JSON value)
    """A result's text; the texts of its parts if it has some, else its JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and value and all(isinstance(item, dict) and "text" in item for item in value):
        return "".join(str(item["text"]) for item in value)
    return msgspec.json.encode(value).decode()


def _loaded(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """An attribute whose lists and objects may be stored as text; other text stays text."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _converted(key: str, value: Any, kind: Any) -> Any:  # noqa: ANN401  (any JSON value)
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as cause:
        raise ValueError(f"{key}: {cause}") from None


def _numbered(attributes: Attributes, prefix: str) -> list[dict[str, Any]]:
    """The objects of attributes such as ``gen_ai.prompt.0.content``, as OpenLLMetry stored messages until 2025."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for key, value in attributes.items():
        match = _NUMBERED.fullmatch(key)
        if match is None or match[1] != prefix:
            continue
        number = int(match[2])
        fields = found.setdefault(number, {})
        if call := _NUMBERED_CALL.fullmatch(match[3]):
            calls.setdefault(number, {}).setdefault(int(call[1]), {})[call[2]] = value
        else:
            fields[match[3]] = _loaded(value) if match[3] == "content" else value
    for number, of_message in calls.items():
        found[number]["tool_calls"] = [of_message[k] for k in sorted(of_message)]
    return [found[number] for number in sorted(found)]
