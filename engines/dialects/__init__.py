"""Wire formats: encode a turn as a request, decode stream payloads as events. No I/O."""

from engines.dialects.anthropic import AnthropicDialect
from engines.dialects.base import (
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
from engines.dialects.llama_cpp import LlamaCppDialect, LlamaCppNativeDialect, LlamaCppPythonDialect
from engines.dialects.openai import OpenAiDialect
from engines.dialects.openai_service import OpenAiServiceDialect
from engines.dialects.responses import ResponsesDialect
from engines.dialects.sglang import SglangDialect, SglangNativeDialect
from engines.dialects.sse import SseParser
from engines.dialects.tensorrt_llm import TensorRtLlmDialect
from engines.dialects.tgi import TgiDialect, TgiNativeDialect
from engines.dialects.transformers import TransformersDialect
from engines.dialects.triton import TritonDialect
from engines.dialects.vllm import ReferenceDialect, VllmDialect

__all__ = [
    "AnthropicDialect",
    "Dialect",
    "EmptyChunk",
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
]
