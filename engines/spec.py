"""What all engines share, under one name each, and how one engine spells it.

An experiment says ``max_num_seqs = 32`` once; vLLM is told ``--max-num-seqs 32``, llama-server ``--parallel 32``, and
an engine that has no such thing refuses in one line. Names are vLLM's, which most people know.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from engines.errors import BadOption


class Speculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Speculative decoding: what proposes tokens, and how many at a time."""

    method: str
    """``ngram``, ``draft`` (a smaller model), ``eagle3``, ``mtp``…, as far as the engine has it."""
    num_tokens: int
    """Tokens proposed in one step."""
    model: str | None = None
    """Folder of the draft model, where the method needs one."""


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings that mean the same in every engine; None leaves the engine's default."""

    dtype: str | None = None
    """Of weights and activations: ``auto``, ``float32``, ``bfloat16`` or ``float16``."""
    quantization: str | None = None
    """Of the weights, by the engine's own name for it."""
    kv_cache_dtype: str | None = None
    """Of the KV cache: ``auto``, ``fp8``, ``q8_0``…, as far as the engine has it."""
    max_model_len: int | None = None
    """Longest prompt plus answer, in tokens."""
    max_num_seqs: int | None = None
    """Sequences in one step."""
    max_num_batched_tokens: int | None = None
    """Token budget of one step: what chunked prefill cuts prompts to."""
    tensor_parallel_size: int | None = None
    """GPUs that share each layer."""
    pipeline_parallel_size: int | None = None
    """GPUs that share the layers among them."""
    enable_prefix_caching: bool | None = None
    """Whether what prompts have in common at their beginning is computed once."""
    enable_chunked_prefill: bool | None = None
    """Whether long prompts are computed in pieces beside the decoding of others."""
    speculation: Speculation | None = None
    """Speculative decoding; None is the engine's default, which is none."""
    seed: int | None = None
    """Of the engine's sampling."""
    memory_fraction: float | None = None
    """Fraction of GPU memory to use. Engines disagree on whether it is of total or of free memory."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size",
                     "pipeline_parallel_size"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise ValueError(f"memory_fraction must be above 0 and at most 1, not {self.memory_fraction}")

    def given(self) -> dict[str, Any]:
        """The fields that are set."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}

    def under(self, own: "EngineSpec") -> "EngineSpec":
        """This, with whatever ``own`` sets instead."""
        return msgspec.structs.replace(self, **own.given())


class Setting(msgspec.Struct, frozen=True):
    """What an engine is told.

    Attributes:
        argv: words of its command line.
        env: variables of its environment.
        config: keys of its configuration file, dots for nesting, where it is told so.
    """

    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    config: dict[str, Any] = {}

    def __add__(self, other: "Setting") -> "Setting":
        return Setting(self.argv + other.argv, {**self.env, **other.env}, {**self.config, **other.config})


class Cannot(msgspec.Struct, frozen=True):
    """An engine has no such setting.

    Attributes:
        why: half a sentence that goes on after *it cannot be told X:*.
    """

    why: str


Spelling = Callable[[Any], Setting | Cannot]
"""From a field's value to what the engine is told, or why it cannot do that value."""
Spellings = Mapping[str, Spelling | Cannot]
"""By field of :class:`EngineSpec`; what is missing here the engine does not have."""


def flag(name: str) -> Spelling:
    """``--name value``."""
    return lambda value: Setting((name, str(value)))


def switch(on: str | None, off: str | None = None) -> Spelling:
    """A flag without a value; None where the engine does that by itself."""

    def spell(value: bool) -> Setting:
        word = on if value else off
        return Setting((word,) if word else ())

    return spell


def variable(name: str) -> Spelling:
    """An environment variable; a switch is 1 or 0."""
    return lambda value: Setting(env={name: str(int(value)) if isinstance(value, bool) else str(value)})


def key(name: str) -> Spelling:
    """A key of the engine's configuration file."""
    return lambda value: Setting(config={name: value})


def one_of(values: Iterable[str | bool], spelling: Spelling) -> Spelling:
    """Only these values; anything else is refused with the list."""
    known = tuple(values)
    return lambda value: (
        spelling(value) if value in known else Cannot(f"it knows {', '.join(map(str, known))}, not {value!r}")
    )


def spelt(spec: EngineSpec, spellings: Spellings, adapter: str) -> Setting:
    """What an engine is told, all settings together.

    Raises:
        BadOption: it has no such setting, or not that value.
    """
    told = Setting()
    for name, value in spec.given().items():
        spelling = spellings.get(name, Cannot("it has no such setting"))
        setting = spelling if isinstance(spelling, Cannot) else spelling(value)
        if isinstance(setting, Cannot):
            raise BadOption(f"engine '{adapter}' cannot be told {name}: {setting.why}; leave it out for this engine")
        told += setting
    return told


def option_argv(options: msgspec.Struct) -> tuple[str, ...]:
    """An adapter's options that are set, each as the flag of its name: ``--block-size 16``, ``--no-x`` for false."""
    argv: list[str] = []
    for name, value in msgspec.to_builtins(options).items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{word}" if value else f"--no-{word}")
        elif value is not None:
            argv += [f"--{word}", str(value)]
    return tuple(argv)
