"""Wire formats: encode a turn as a request, decode stream payloads as events. No I/O."""

from bakeoff.engines.dialects.anthropic import AnthropicDialect
from bakeoff.engines.dialects.base import (
    REQUEST_ID,
    SESSION_ID,
    Dialect,
    EmptyChunk,
    Event,
    EventReader,
    Finish,
    HttpRequest,
    StreamFault,
    TokenDelta,
    TokenKind,
    Usage,
    holds_to_schema,
)
from bakeoff.engines.dialects.fields import CarriesFields, TakesTokenIds
from bakeoff.engines.dialects.llama_cpp import LlamaCppDialect, LlamaCppNativeDialect, LlamaCppPythonDialect
from bakeoff.engines.dialects.openai import OpenAiDialect
from bakeoff.engines.dialects.openai_service import OpenAiServiceDialect
from bakeoff.engines.dialects.responses import ResponsesDialect
from bakeoff.engines.dialects.sglang import SglangDialect, SglangNativeDialect
from bakeoff.engines.dialects.sse import ErrorData, SseParser
from bakeoff.engines.dialects.tensorrt_llm import TensorRtLlmDialect
from bakeoff.engines.dialects.tgi import TgiDialect, TgiNativeDialect
from bakeoff.engines.dialects.transformers import TransformersDialect
from bakeoff.engines.dialects.triton import TritonDialect
from bakeoff.engines.dialects.vllm import ReferenceDialect, VllmDialect
from bakeoff.engines.dialects.whole import whole_answer

__all__ = [
    "REQUEST_ID",
    "SESSION_ID",
    "AnthropicDialect",
    "CarriesFields",
    "Dialect",
    "EmptyChunk",
    "ErrorData",
    "Event",
    "EventReader",
    "Finish",
    "HttpRequest",
    "LlamaCppDialect",
    "LlamaCppNativeDialect",
    "LlamaCppPythonDialect",
    "OpenAiDialect",
    "OpenAiServiceDialect",
    "ReferenceDialect",
    "ResponsesDialect",
    "SglangDialect",
    "SglangNativeDialect",
    "SseParser",
    "StreamFault",
    "TakesTokenIds",
    "TensorRtLlmDialect",
    "TgiDialect",
    "TgiNativeDialect",
    "TokenDelta",
    "TokenKind",
    "TransformersDialect",
    "TritonDialect",
    "Usage",
    "VllmDialect",
    "holds_to_schema",
    "whole_answer",
]
