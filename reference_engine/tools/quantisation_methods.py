"""The methods of `quantize`: each one's layout, checkpoint format and settings, and whether it needs a text."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal

from bakeoff.reference_engine.core.quantization_names import WrittenName
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat, IntegerScheme, Scheme
from bakeoff.reference_engine.quantization.formats.registry import IntegerFormatName, format_for, integer_format
from bakeoff.reference_engine.quantization.formats.schemes import Fp8Scheme, Int8Scheme, Nf4Scheme
from bakeoff.reference_engine.quantization.llm_int8 import LlmInt8Matrix
from bakeoff.reference_engine.quantization.rounding import Bits
from bakeoff.reference_engine.tools.layer_quantisers import AwqLayer, GptqLayer, LayerQuantiser, SmoothedLayer
from bakeoff.reference_engine.tools.unfinished import flag

_GROUPS = (128, 64, 32)
_Setting = Literal["group_size", "act_order", "asymmetric", "smoothing", "budget_mb"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quantising:
    """Settings; the resulting weights depend on all of them.

    Raises:
        ConfigError: a value is out of range, or does not apply to the method.
    """

    method: Annotated[WrittenName, "how codes are chosen; gptq, awq and w8a8 measure each matrix's inputs on a text"]
    group_size: Annotated[
        int | None,
        "inputs that share a scale (default: the largest of 128, 64 and 32 that divides all widths; int8: all inputs)",
    ] = None
    act_order: Annotated[bool, "round columns with large inputs first (gptq)"] = False
    asymmetric: Annotated[bool, "a zero point for each group (gptq); awq and the methods in -zp always have one"] = (
        False
    )
    smoothing: Annotated[
        float | None, "share of the difficulty that weights take over from activations (w8a8; default: 0.5)"
    ] = None
    budget_mb: Annotated[
        float | None, "size of the weights in 10^6 bytes: layers that matter most get 8 bits or stay plain (int4)"
    ] = None
    calibration_tokens: Annotated[int, "tokens of the text to use"] = 32_768

    def __post_init__(self) -> None:
        if self.group_size is not None and (self.group_size < 32 or self.group_size % 32):
            raise ConfigError(f"--group-size must be a multiple of 32, not {self.group_size}")
        if self.smoothing is not None and not 0 <= self.smoothing <= 1:
            raise ConfigError(f"--smoothing must be 0 to 1, not {self.smoothing}")
        settings: dict[_Setting, object] = {
            "group_size": self.group_size,
            "act_order": self.act_order or None,
            "asymmetric": self.asymmetric or None,
            "smoothing": self.smoothing,
            "budget_mb": self.budget_mb,
        }
        for setting, value in settings.items():
            if value is not None and setting not in METHODS[self.method].settings:
                takers = ", ".join(name for name, method in METHODS.items() if setting in method.settings)
                raise ConfigError(f"{flag(setting)} is for --method {takers}; leave it out")
        if self.calibration_tokens < 2:
            raise ConfigError(f"--calibration-tokens must be at least 2, not {self.calibration_tokens}")

    @property
    def needs_text(self) -> bool:
        """Whether a text is needed, to measure the inputs of matrices or the importance of layers."""
        return METHODS[self.method].needs_text or self.budget_mb is not None

    def plan(self, widths: Collection[int]) -> "Plan":
        """Resolves the settings for a model.

        Args:
            widths: inputs of its matrices.

        Raises:
            ConfigError: groups do not divide the widths.
        """
        return METHODS[self.method].plan(self, set(widths))


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The quantisation and storage of the matrices of one model.

    Attributes:
        scheme: scheme of all of them.
        encoding: makes the format from the names of modules that stay plain besides the head.
        layer: quantises those of a layer by their inputs on a text; None: each is rounded to nearest.
    """

    scheme: Scheme
    encoding: Callable[[Sequence[str]], CheckpointFormat]
    layer: LayerQuantiser | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WrittenMethod:
    """One method.

    Attributes:
        plan: see `Quantising.plan`.
        settings: names of the settings in `Quantising` that apply to it.
        needs_text: whether its plan has a `layer`.
    """

    plan: Callable[[Quantising, Collection[int]], Plan]
    settings: tuple[_Setting, ...] = ()
    needs_text: bool = False


def _integers(
    bits: Bits,
    *,
    symmetric: bool,
    written_as: IntegerFormatName = "pack-quantized",
    layer: Callable[[IntegerScheme], LayerQuantiser] | None = None,
    more: tuple[_Setting, ...] = (),
) -> WrittenMethod:
    """A method of whole numbers in groups."""

    def plan(quantising: Quantising, widths: Collection[int]) -> Plan:
        scheme = IntegerScheme(
            bits, _group(quantising.group_size, bits, widths), symmetric and not quantising.asymmetric,
            quantising.act_order,
        )  # fmt: skip
        return Plan(
            scheme, lambda plain: integer_format(written_as, scheme, plain), None if layer is None else layer(scheme)
        )

    return WrittenMethod(plan, ("group_size", *more), needs_text=layer is not None)


def _group(requested: int | None, bits: Bits, widths: Collection[int]) -> int | None:
    """Columns that share a scale."""
    if requested is None and bits == 8:
        return None
    for group in _GROUPS if requested is None else (requested,):
        if not any(width % group for width in widths):
            return group
    if requested is None:
        raise ConfigError(
            f"4 bits need widths that 32 divides, and those of this model are {sorted(widths)}; take 8 bits"
        )
    raise ConfigError(
        f"--group-size {requested} does not divide the widths of the matrices, which are {sorted(widths)}"
    )


def _rounded(scheme: Fp8Scheme | Int8Scheme | Nf4Scheme) -> WrittenMethod:
    """A method that rounds to nearest."""
    return WrittenMethod(lambda _, __: Plan(scheme, lambda plain: format_for(scheme, plain)))


def _smoothed(scheme: Int8Scheme) -> WrittenMethod:
    """A method that rounds to nearest after SmoothQuant."""

    def plan(quantising: Quantising, _: Collection[int]) -> Plan:
        alpha = 0.5 if quantising.smoothing is None else quantising.smoothing
        return Plan(scheme, lambda plain: format_for(scheme, plain), SmoothedLayer(scheme, alpha))

    return WrittenMethod(plan, ("smoothing",), needs_text=True)


METHODS: Mapping[WrittenName, WrittenMethod] = {
    "int8": _integers(8, symmetric=True),
    "int8-zp": _integers(8, symmetric=False),
    "int4": _integers(4, symmetric=True, more=("budget_mb",)),
    "int4-zp": _integers(4, symmetric=False, more=("budget_mb",)),
    "fp8": _rounded(Fp8Scheme()),
    "llm-int8": _rounded(Int8Scheme(LlmInt8Matrix)),
    "nf4": _rounded(Nf4Scheme()),
    "nf4-double": _rounded(Nf4Scheme(nested=True)),
    "gptq": _integers(4, symmetric=True, written_as="gptq", layer=GptqLayer, more=("act_order", "asymmetric")),
    "awq": _integers(4, symmetric=False, written_as="awq", layer=AwqLayer),
    "w8a8": _smoothed(Int8Scheme()),
}
"""Methods by name."""
