"""Bytes that the engine needs for the matrices that a config.json implies, quantised or not; creates no weights.

Matrices are quantised on torch's meta device, where tensors have a shape and a dtype but no numbers.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import torch

from bakeoff.reference_engine.core.config import QuantizationName
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.config_readers import DeepseekConfig
from bakeoff.reference_engine.models.names import ENDS, ROUTERS
from bakeoff.reference_engine.models.shapes import Shape, weight_shapes
from bakeoff.reference_engine.quantization.formats.base import CheckpointFormat, IntegerScheme, Scheme
from bakeoff.reference_engine.quantization.formats.mxfp4 import Mxfp4Experts
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.quantization.methods import METHODS

_META = torch.device("meta")
_MATRIX = 2  # dimensions
_JOINED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj", "w3": "w1"}
"""Matrices that are multiplied together with an earlier one."""
_ABSORBED = ("q_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight", "kv_b_proj.weight")
"""Of DeepSeek: they are reordered or cut into heads, so they stay plain."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loading:
    """How weights are loaded.

    Attributes:
        dtype: of activations and plain weights.
        device: the computing device.
        quantization: see `EngineConfig`.
        checkpoint_format: see `Checkpoint.format`.
    """

    dtype: torch.dtype
    device: torch.device
    quantization: QuantizationName = "none"
    checkpoint_format: CheckpointFormat | Mxfp4Experts | None = None


def layer_matrices(config: ModelConfig) -> dict[str, Shape]:
    """Shapes [out_features, in_features], by name, of the layers' matrices that `Weights` multiplies by, no routers."""
    plain = (*ROUTERS, *_ABSORBED) if isinstance(config, DeepseekConfig) else ROUTERS
    return {
        name: shape
        for name, shape in weight_shapes(config).items()
        if ".layers." in name and len(shape) == _MATRIX and not name.endswith(plain)
    }


def quantised_matrices(config: ModelConfig, loading: Loading) -> dict[str, QuantisedMatrix]:
    """The matrices that stay quantised, by name, on the meta device; equal ones are the same object."""
    method, layers = METHODS.get(loading.quantization), layer_matrices(config)
    if method is not None:
        make = _by_shape(method.make, loading.dtype)
        matrices = {name: make(shape) for name, shape in layers.items()}
    elif loading.quantization == "none" or loading.checkpoint_format is None:
        return {}
    else:
        shapes = layers | {name: shape for name, shape in weight_shapes(config).items() if name in ENDS}
        matrices = _stored(shapes, loading.checkpoint_format, loading.dtype)
    is_auto = loading.quantization == "auto"
    return {
        name: matrix
        for name, matrix in matrices.items()
        if matrix is not None and not (is_auto and not matrix.has_kernel(loading.device, loading.dtype))
    }


def quantised_bytes(config: ModelConfig, loading: Loading) -> dict[str, int]:
    """Bytes of each matrix that stays quantised; see `ModelCosts`."""
    return {
        name: matrix.held_bytes(loading.device, loading.dtype)
        for name, matrix in quantised_matrices(config, loading).items()
    }


def product_bytes(config: ModelConfig, loading: Loading) -> dict[str, int]:
    """Bytes of the weights of each product in layers, by the name of its first matrix."""
    quantised, itemsize = quantised_bytes(config, loading), loading.dtype.itemsize
    sizes: dict[str, int] = {}
    for name, shape in layer_matrices(config).items():
        prefix, part = name.removesuffix(".weight").rsplit(".", 1)
        first = f"{prefix}.{_JOINED.get(part, part)}.weight"
        sizes[first] = sizes.get(first, 0) + quantised.get(name, math.prod(shape) * itemsize)
    return sizes


def _stored(
    shapes: Mapping[str, Shape], form: CheckpointFormat | Mxfp4Experts, dtype: torch.dtype
) -> dict[str, QuantisedMatrix | None]:
    @functools.cache
    def maker(scheme: Scheme) -> Callable[[Shape], QuantisedMatrix | None]:
        def make(weight: torch.Tensor) -> QuantisedMatrix | None:
            matrix = scheme.nearest(weight) if scheme.suits(weight.shape[1]) else None
            if isinstance(scheme, IntegerScheme) and scheme.act_order and isinstance(matrix, IntegerMatrix):
                order = torch.empty(weight.shape[1], dtype=torch.int64, device=_META)
                return dataclasses.replace(matrix, order=order)
            return matrix

        return _by_shape(make, dtype)

    schemes = {name: form.scheme(name.removesuffix(".weight")) for name in shapes}
    return {name: maker(scheme)(shapes[name]) for name, scheme in schemes.items() if scheme is not None}


def _by_shape(
    make: Callable[[torch.Tensor], QuantisedMatrix | None], dtype: torch.dtype
) -> Callable[[Shape], QuantisedMatrix | None]:
    @functools.cache
    def placeholder(shape: Shape) -> QuantisedMatrix | None:
        return make(torch.empty(shape, dtype=dtype, device=_META))

    return placeholder
