"""Settings shared by all engines, and how each engine spells them.

An experiment sets ``max_num_seqs = 32`` once; vLLM gets ``--max-num-seqs 32``, llama-server ``--parallel 32``, and an
engine without the setting reports an error. Names follow vLLM, which most people know.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from bakeoff.engines.errors import BadOption


class Speculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Speculative decoding: the method and the number of draft tokens."""

    method: str
    """``ngram``, ``draft`` (a smaller model), ``eagle3``, ``mtp``…, if the engine supports it."""
    num_tokens: int
    """Draft tokens per step."""
    model: str | None = None
    """Folder of the draft model, if the method needs one."""


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings with the same meaning in every engine; None keeps the engine's default."""

    dtype: str | None = None
    """Type of weights and activations: ``auto``, ``float32``, ``bfloat16`` or ``float16``."""
    quantization: str | None = None
    """Quantization of the weights, by the engine's name for it."""
    kv_cache_dtype: str | None = None
    """Type of the KV cache: ``auto``, ``fp8``, ``q8_0``…, if the engine supports it."""
    max_model_len: int | None = None
    """Longest prompt plus answer, in tokens."""
    max_num_seqs: int | None = None
    """Maximum number of sequences per step."""
    max_num_batched_tokens: int | None = None
    """Token budget per step, which limits the chunks of chunked prefill."""
    tensor_parallel_size: int | None = None
    """Number of GPUs that split each layer."""
    pipeline_parallel_size: int | None = None
    """Number of GPUs that split the sequence of layers."""
    enable_prefix_caching: bool | None = None
    """Whether shared prefixes of prompts are computed once."""
    enable_chunked_prefill: bool | None = None
    """Whether long prompts are computed in chunks, batched with decoding."""
    speculation: Speculation | None = None
    """Speculative decoding; None is the engine's default, which is none."""
    seed: int | None = None
    """Seed of the engine's sampling."""
    memory_fraction: float | None = None
    """Fraction of GPU memory to use. Engines disagree on whether it is of total or of free memory."""
    cpu_offload_gb: float | None = None
    """GiB of weights that stay in host memory, for each GPU."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size",
                     "pipeline_parallel_size"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise ValueError(f"memory_fraction must be above 0 and at most 1, not {self.memory_fraction}")
        if self.cpu_offload_gb is not None and not 0 <= self.cpu_offload_gb < math.inf:
            raise ValueError(f"cpu_offload_gb must be at least 0, not {self.cpu_offload_gb}")

    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}

    def under(self, own: "EngineSpec") -> "EngineSpec":
        """A copy in which the settings of ``own`` take precedence."""
        return msgspec.structs.replace(self, **own.given())


class Setting(msgspec.Struct, frozen=True):
    """How one or more settings are passed to an engine.

    Attributes:
        argv: command-line arguments.
        env: environment variables.
        config: keys of its configuration file, with dots for nesting.
    """

    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    config: dict[str, Any] = {}

    def __add__(self, other: "Setting") -> "Setting":
        return Setting(self.argv + other.argv, {**self.env, **other.env}, {**self.config, **other.config})


class Cannot(msgspec.Struct, frozen=True):
    """The engine does not support a setting or value.

    Attributes:
        why: reason, which completes the sentence *engine cannot be told X:*.
    """

    why: str


Spelling = Callable[[Any], Setting | Cannot]
"""Maps a field's value to a setting of the engine, or to the reason why it is not supported."""
Spellings = Mapping[str, Spelling | Cannot]
"""Spellings by field of :class:`EngineSpec`; a missing field is not supported."""


def flag(name: str) -> Spelling:
    """``--name value``."""
    return lambda value: Setting((name, str(value)))


def switch(on: str | None, off: str | None = None) -> Spelling:
    """A flag without a value; None if that is the engine's default."""

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
    """Restrict a spelling to these values; the error lists them."""
    known = tuple(values)
    return lambda value: (
        spelling(value) if value in known else Cannot(f"it knows {', '.join(map(str, known))}, not {value!r}")
    )


def spelt(spec: EngineSpec, spellings: Spellings, adapter: str) -> Setting:
    """All settings of a spec, in the spelling of one engine.

    Raises:
        BadOption: the engine does not support a setting or its value.
    """
    total = Setting()
    for name, value in spec.given().items():
        spelling = spellings.get(name, Cannot("it has no such setting"))
        setting = spelling if isinstance(spelling, Cannot) else spelling(value)
        if isinstance(setting, Cannot):
            raise BadOption(f"engine '{adapter}' cannot be told {name}: {setting.why}; leave it out for this engine")
        total += setting
    return total


def option_argv(options: msgspec.Struct) -> tuple[str, ...]:
    """An adapter's options as flags of the same name: ``--block-size 16``, ``--no-x`` for false; None is left out."""
    argv: list[str] = []
    for name, value in msgspec.to_builtins(options).items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{word}" if value else f"--no-{word}")
        elif value is not None:
            argv += [f"--{word}", str(value)]
    return tuple(argv)
