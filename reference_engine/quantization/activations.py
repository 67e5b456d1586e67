"""What a layer's matrices get as inputs, summed up over a text: all that GPTQ and AWQ need to know of it."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch


@dataclasses.dataclass(slots=True)
class Activations:
    """Sums over the inputs x of one matrix, on the device that computes.

    Attributes:
        hessian: the sum of x·xᵀ, float32 [in_features, in_features].
        magnitudes: the sum of |x|, float32 [in_features].
        tokens: inputs so far.
    """

    hessian: torch.Tensor
    magnitudes: torch.Tensor
    tokens: int = 0

    def add(self, rows: torch.Tensor) -> None:
        """Adds inputs [..., in_features]."""
        rows = rows.flatten(0, -2).float()
        self.hessian.addmm_(rows.T, rows)
        self.magnitudes += rows.abs().sum(0)
        self.tokens += rows.shape[0]

    def scaled(self, scale: torch.Tensor) -> "Activations":
        """Of the inputs divided by `scale` [in_features]."""
        hessian = self.hessian / scale / scale[:, None]
        return Activations(hessian, self.magnitudes / scale, self.tokens)


@contextlib.contextmanager
def observed(layer: Any, groups: Mapping[str, str]) -> Generator[dict[str, Activations]]:  # noqa: ANN401 (a module)
    """Collects the activations of a module's matrices while it runs.

    Args:
        layer: of Transformers.
        groups: names of matrices, and of the first matrix with the same input, which stands for all of them.

    Yields:
        Activations by name of matrix.
    """
    first: dict[str, Activations] = {}
    with contextlib.ExitStack() as hooks:
        for name in dict.fromkeys(groups.values()):
            module = layer.get_submodule(name)
            like, width = module.weight, module.in_features
            zeros = torch.zeros(width, width, dtype=torch.float32, device=like.device)
            first[name] = Activations(zeros, zeros[0].clone())
            hooks.callback(module.register_forward_pre_hook(_adds_to(first[name])).remove)
        yield {name: first[source] for name, source in groups.items()}


def _adds_to(activations: Activations) -> Callable[[Any, Any], None]:
    def on_input(_: Any, inputs: Any) -> None:  # noqa: ANN401
        activations.add(inputs[0])

    return on_input
