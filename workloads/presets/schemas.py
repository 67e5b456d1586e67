"""JSON schemas of the size and shape that applications use for structured output."""

import functools
import json

from bakeoff.workloads.rng import Rng

_ENTITIES = ("invoice", "patient", "shipment", "ticket", "recipe", "vehicle", "contract", "review", "booking", "sensor")
_FIELDS = (
    "name", "status", "created_at", "amount", "currency", "priority", "city", "quantity", "reference", "summary",
    "category", "owner", "score", "due_date", "weight_kg", "is_active", "language", "notes", "country", "rating",
)  # fmt: skip
_KINDS = (
    {"type": "string"},
    {"type": "number"},
    {"type": "integer", "minimum": 0},
    {"type": "boolean"},
    {"type": "string", "enum": ["low", "medium", "high"]},
    {"type": "array", "items": {"type": "string"}, "maxItems": 5},
)


@functools.lru_cache(maxsize=256)
def json_schema(number: int) -> str:
    """Schema ``number``: an object with 5 to 12 required fields, the same on every machine."""
    rng = Rng("json-schema", str(number))
    count, names = 5 + rng.below(8), dict[str, object]()
    while len(names) < count:
        names[rng.choice(_FIELDS)] = rng.choice(_KINDS)
    schema = {
        "title": f"{rng.choice(_ENTITIES)}_{number}",
        "type": "object",
        "properties": names,
        "required": list(names),
        "additionalProperties": False,
    }
    return json.dumps(schema)
