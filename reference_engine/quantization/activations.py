"""Statistics of the inputs of a layer's matrices over a text, for GPTQ, AWQ and SmoothQuant."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any, Self

import torch


@dataclasses.dataclass(slots=True)
class Activations:
    """Sums and maxima over the inputs x of one matrix, on the computing device.

    Attributes:
        products: the sum of x·xᵀ, float32 [in_features, in_features]; None if it is not needed.
        magnitudes: the sum of |x|, float32 [in_features].
        largest: the largest |x|, float32 [in_features].
        tokens: inputs so far.
    """

    products: torch.Tensor | None
    magnitudes: torch.Tensor
    largest: torch.Tensor
    tokens: int = 0

    @classmethod
    def none(cls, width: int, device: torch.device, *, has_products: bool = True) -> Self:
        """Statistics of no inputs yet, each of which will have in_features of `width`."""
        zeros = torch.zeros(width, dtype=torch.float32, device=device)
        return cls(zeros.repeat(width, 1) if has_products else None, zeros, zeros.clone())

    @property
    def hessian(self) -> torch.Tensor:
        """The sum of x·xᵀ, if it was collected: half the Hessian of the output's squared error."""
        assert self.products is not None
        return self.products

    def add(self, rows: torch.Tensor) -> None:
        """Adds inputs [..., in_features]."""
        rows = rows.flatten(0, -2).float()
        if self.products is not None:
            self.products.addmm_(rows.T, rows)
        sizes = rows.abs()
        self.magnitudes += sizes.sum(0)
        self.largest = torch.maximum(self.largest, sizes.amax(0))
        self.tokens += rows.shape[0]

    def scaled(self, scale: torch.Tensor) -> "Activations":
        """Statistics of the inputs divided by `scale` [in_features]."""
        products = None if self.products is None else self.products / scale / scale[:, None]
        return Activations(products, self.magnitudes / scale, self.largest / scale, self.tokens)


@contextlib.contextmanager
def observed(
    layer: Any,  # noqa: ANN401 (a module)
    groups: Mapping[str, str],
    *,
    has_products: bool = True,
) -> Generator[dict[str, Activations]]:
    """Collects the activations of a module's matrices while it runs.

    Args:
        layer: a layer of Transformers.
        groups: name of each matrix -> name of the first matrix with the same input, which represents all of them.
        has_products: see `Activations.products`.

    Yields:
        Activations by name of matrix.
    """
    first: dict[str, Activations] = {}
    with contextlib.ExitStack() as hooks:
        for name in dict.fromkeys(groups.values()):
            module = layer.get_submodule(name)
            first[name] = Activations.none(module.in_features, module.weight.device, has_products=has_products)
            hooks.callback(module.register_forward_pre_hook(_adds_to(first[name])).remove)
        yield {name: first[source] for name, source in groups.items()}


def _adds_to(activations: Activations) -> Callable[[Any, Any], None]:
    def on_input(_: Any, inputs: Any) -> None:  # noqa: ANN401
        activations.add(inputs[0])

    return on_input
