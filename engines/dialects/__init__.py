"""Wire formats: a turn becomes bytes, stream payloads become events. No I/O."""

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
)
from engines.dialects.openai import OpenAiDialect
from engines.dialects.reference import ReferenceDialect
from engines.dialects.sse import SseParser
from engines.dialects.transformers import TransformersDialect

__all__ = [
    "Dialect",
    "EmptyChunk",
    "Event",
    "EventReader",
    "Finish",
    "HttpRequest",
    "OpenAiDialect",
    "ReferenceDialect",
    "SseParser",
    "StreamFault",
    "TokenDelta",
    "TokenKind",
    "TransformersDialect",
    "Usage",
]
