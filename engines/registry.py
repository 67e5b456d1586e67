"""Adapters by name: built-in ones and those of other packages."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeGuard

from bakeoff.engines.adapters.anthropic import AnthropicEngine
from bakeoff.engines.adapters.llama_cpp import LlamaCppEngine
from bakeoff.engines.adapters.llama_cpp_python import LlamaCppPythonEngine
from bakeoff.engines.adapters.openai import OpenAiEngine
from bakeoff.engines.adapters.reference import ReferenceEngine
from bakeoff.engines.adapters.sglang import SglangEngine
from bakeoff.engines.adapters.tensorrt_llm import TensorRtLlmEngine
from bakeoff.engines.adapters.tgi import TgiEngine
from bakeoff.engines.adapters.transformers import TransformersEngine
from bakeoff.engines.adapters.triton import TritonEngine
from bakeoff.engines.adapters.vllm import VllmEngine
from bakeoff.engines.base import Engine, Model, Setup, SupportsAddresses, SupportsCheck
from bakeoff.engines.deployment import Deployment
from bakeoff.engines.dialects import Dialect
from bakeoff.engines.errors import BadAdapter, BadOption, UnknownEngine
from bakeoff.engines.request_shape import RequestShape, ShapedDialect
from bakeoff.engines.secrets import conceal, conceal_named
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import EngineSpec
from bakeoff.workloads.options import nearest, typed_options

ENTRY_POINTS = "bakeoff.engines"
"""Entry-point group for adapters of other packages: classes that implement :class:`bakeoff.engines.base.Engine`."""
_SHARED = (*EngineSpec.__struct_fields__, *Deployment.__struct_fields__)
_OWN: dict[str, type[ServerEngine]] = {
    kind.adapter: kind
    for kind in (
        AnthropicEngine,
        LlamaCppEngine,
        LlamaCppPythonEngine,
        OpenAiEngine,
        ReferenceEngine,
        SglangEngine,
        TensorRtLlmEngine,
        TgiEngine,
        TransformersEngine,
        TritonEngine,
        VllmEngine,
    )
}


def adapter_names() -> tuple[str, ...]:
    """Names of the adapters, those of other packages last."""
    return (*_OWN, *sorted(_others()))


def known_adapters(names: Sequence[str]) -> Sequence[str]:
    """``names``, or all adapters if empty.

    Raises:
        UnknownEngine: no adapter has one of the names; the message suggests the nearest.
    """
    known_names = adapter_names()
    for name in names:
        if name not in known_names:
            raise _unknown(name)
    return names or known_names


def _unknown(name: str) -> UnknownEngine:
    return UnknownEngine(f"unknown engine '{name}'; {nearest(name, adapter_names())}")


def records_requests(adapter: str) -> bool:
    """Whether an adapter's engine records its steps, or exports spans, so that its trials can be profiled.

    Raises:
        UnknownEngine: as :func:`adapter_class`.
    """
    return hasattr(adapter_class(adapter), "recording_options")


def adapter_class(name: str) -> Any:  # noqa: ANN401  (a class that makes an Engine; a base class is optional)
    """The class of one adapter.

    Raises:
        UnknownEngine: no adapter has that name, or an adapter of another package cannot be loaded.
        BadAdapter: an adapter of another package lacks a part of its interface.
    """
    if name in _OWN:
        return _OWN[name]
    point = _others().get(name)
    if point is None:
        raise _unknown(name)
    try:
        kind = point.load()
    except Exception as error:
        raise UnknownEngine(f"engine '{name}' of {point.value} cannot be loaded: {error}") from error
    _require(kind, ("Options", "dialect_for"), name)
    return kind


def is_server_engine(kind: object) -> TypeGuard[type[ServerEngine]]:
    """Whether an adapter derives from ServerEngine, and so has requirements and spellings."""
    return isinstance(kind, type) and issubclass(kind, ServerEngine)


def check(
    adapter: str,
    options: Mapping[str, Any],
    spec: EngineSpec,
    deployment: Deployment,
    request: RequestShape = RequestShape(),  # noqa: B008  (frozen)
) -> None:
    """Check an engine's configuration without touching the machine.

    Raises:
        UnknownEngine: no adapter has that name; the message suggests the nearest.
        BadOption: an option is unknown, of the wrong type, or not supported by the engine.
        BadAdapter: an adapter of another package lacks a member of its interface.
    """
    setup = _setup(adapter, Model(""), options, spec, deployment)
    kind = adapter_class(adapter)
    if isinstance(kind, SupportsCheck):
        kind.check(setup)
    spoken: Dialect = adapter_class(adapter).dialect_for(setup)
    _require(spoken, _members(Dialect), adapter)
    try:
        ShapedDialect(spoken, request).check()
    except BadOption as error:
        raise BadOption(f"engine '{adapter}': {error}") from error


def dialect(adapter: str, options: Mapping[str, Any], deployment: Deployment) -> Dialect:
    """The wire format of an engine, without creating the engine, to read its log.

    Raises:
        UnknownEngine, BadOption, BadAdapter: as :func:`check`.
    """
    return adapter_class(adapter).dialect_for(_setup(adapter, Model(""), options, EngineSpec(), deployment))


def engine(
    adapter: str,
    model: Model,
    options: Mapping[str, Any],
    spec: EngineSpec = EngineSpec(),  # noqa: B008  (frozen)
    deployment: Deployment = Deployment(),  # noqa: B008
    *,
    request: RequestShape = RequestShape(),  # noqa: B008
) -> Engine:
    """Make an engine without starting it; its requests have the shape ``request``.

    Raises:
        UnknownEngine, BadOption, BadAdapter: as :func:`check`.
    """
    made: Engine = adapter_class(adapter)(_setup(adapter, model, options, spec, deployment))
    _require(made, _members(Engine), adapter)
    if deployment.urls and not isinstance(made, SupportsAddresses):
        raise BadOption(f"engine '{adapter}' can only run at one address; give it as url")
    _require(made.dialect, _members(Dialect), adapter)
    try:
        setattr(made, "dialect", ShapedDialect(made.dialect, request))  # noqa: B010  (read-only for all others)
    except AttributeError as error:
        raise BadAdapter(f"engine '{adapter}': dialect of {type(made).__qualname__} cannot be set") from error
    return made


def _require(made: object, members: Iterable[str], adapter: str) -> None:
    """Check what another package made, because a missing member would otherwise show only under load."""
    missing = [name for name in members if not hasattr(made, name)]
    if missing:
        kind = made if isinstance(made, type) else type(made)
        raise BadAdapter(f"engine '{adapter}': {kind.__qualname__} has no {', '.join(missing)}; see docs/adapters.md")


def _members(interface: type) -> list[str]:
    return [name for name in dir(interface) if not name.startswith("_")]


def _setup(adapter: str, model: Model, options: Mapping[str, Any], spec: EngineSpec, deployment: Deployment) -> Setup:
    conceal(*deployment.secrets())
    conceal_named({name: value for name, value in options.items() if isinstance(value, str)})
    misplaced = next((name for name in options if name in _SHARED), None)
    if misplaced:
        place = "spec" if misplaced in EngineSpec.__struct_fields__ else "the engine's own table, beside options"
        raise BadOption(f"engine '{adapter}' has no option '{misplaced}'; it belongs in {place}")
    own = typed_options(adapter_class(adapter).Options, options, f"engine '{adapter}'", BadOption)
    return Setup(model, spec, own, deployment)


@functools.cache
def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in _OWN}
