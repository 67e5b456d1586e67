"""The reference engine's dialect: vLLM's field names."""

from typing import Any, ClassVar

from engines.dialects.vllm import VllmDialect


class ReferenceDialect(VllmDialect):
    """Exact lengths and exact counts, as vLLM's; there is no generation config to neutralise."""

    name = "reference"
    neutral: ClassVar[dict[str, Any]] = {}
