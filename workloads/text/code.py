"""Source code from a small grammar, similar to completion requests for a tokenizer."""

from collections.abc import Iterator

from bakeoff.workloads.rng import Rng

_NOUNS = (
    "order", "user", "index", "buffer", "token", "request", "cache", "report", "session", "record", "batch", "node",
    "invoice", "sensor", "packet", "config", "entry", "window", "queue", "event", "account", "message", "schema",
)  # fmt: skip
_VERBS = (
    "load", "parse", "update", "merge", "validate", "encode", "flush", "resolve", "collect", "format", "remove",
    "compare", "schedule", "restore", "publish", "group", "normalise", "render", "split", "count",
)  # fmt: skip
_TYPES = ("int", "str", "float", "bytes", "bool", "list[str]", "dict[str, int]", "Path", "None")


def code_units(rng: Rng) -> Iterator[str]:
    """Yield endless functions of a few statements, line by line, each line with the line break before it."""
    yield "\nimport json\nfrom pathlib import Path\n"
    while True:
        yield from _function(rng)


def _function(rng: Rng) -> Iterator[str]:
    name, first, second = (_name(rng) for _ in range(3))
    yield f"\n\ndef {rng.choice(_VERBS)}_{name}({first}: {rng.choice(_TYPES)}, {second}: int) -> {rng.choice(_TYPES)}:"
    yield f'\n    """{rng.choice(_VERBS).capitalize()} the {name} of each {rng.choice(_NOUNS)}."""'
    for _ in range(2 + rng.below(6)):
        yield _statement(rng, first, second)
    yield f"\n    return {rng.choice((first, second, name))}"


def _statement(rng: Rng, first: str, second: str) -> str:
    name = _name(rng)
    return rng.choice(
        (
            f"\n    {name} = {rng.choice(_VERBS)}({first}, {rng.below(100)})",
            f'\n    if {second} > {rng.below(1000)}:\n        raise ValueError(f"no {name}: {{{second}}}")',
            f"\n    for {name} in {first}.{rng.choice(_NOUNS)}s():\n        {second} += {name}.{rng.choice(_NOUNS)}",
            f"\n    self.{name} = [{rng.choice(_NOUNS)}.{rng.choice(_NOUNS)} for {rng.choice(_NOUNS)} in {first}]",
            f"\n    # {rng.choice(_VERBS)} the {name} before the {rng.choice(_NOUNS)} is full",
            f'\n    with open({second}, "rb") as {name}:\n        {first} = json.load({name})',
        )
    )


def _name(rng: Rng) -> str:
    return f"{rng.choice(_NOUNS)}_{rng.choice(_NOUNS)}"
