"""Weights in host memory, copied to the GPU in each step while it computes (`--cpu-offload-gb`).

An offloaded product keeps its weights in one piece of pinned host memory. Two buffers on the GPU take turns: while a
product reads the one, a second stream copies the weights of the next offloaded product into the other (FlexGen, arXiv
2303.06865, overlaps layers in this way). A step then takes at least the offloaded bytes divided by the bandwidth of the
bus. Products run in the order in which they were made, and addresses never change, so CUDA graphs can repeat a step.
"""

import copy
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch

from bakeoff.reference_engine.quantization.matrix import Linear

_log = logging.getLogger(__name__)

_ALIGNMENT = 256
"""Of tensors in a buffer, in bytes; the same as in torch's allocator."""
_SLOTS = 2
_MIB, _GIB = 1 << 20, 1 << 30


class Lane(Protocol):
    """Copies that run concurrently with the computation, one after the other."""

    def host_memory(self, size: int) -> torch.Tensor:
        """Host memory, uint8 [size], that can be copied from while the device computes."""
        ...

    def follow(self) -> None:
        """Later copies wait for the computation launched so far."""
        ...

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:
        """Launches a copy between tensors of the same shape; `slot` identifies it for `await_copy`."""
        ...

    def await_copy(self, slot: int) -> None:
        """Later computation waits for the latest copy of that slot."""
        ...


class CudaLane:
    """A `Lane` on a stream of its own; works inside the capture of a CUDA graph, too.

    Args:
        device: the computing device; its current stream is used.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._copied = [torch.cuda.Event() for _ in range(_SLOTS)]
        self._fence = torch.zeros(1, dtype=torch.int32, device=device)

    def host_memory(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._copied[slot].record()

    def await_copy(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._copied[slot])
        # Kernels with an early start (kernels/early_start.py) read weights before the previous kernel has ended. That
        # kernel must therefore be one that starts after the copy.
        self._fence.add_(1)


@dataclasses.dataclass(slots=True)
class _Unit:
    """The weights of one product."""

    host: torch.Tensor
    """uint8 [bytes]."""
    streamed: "StreamedLinear"


class WeightOffload:
    """Chooses products whose weights stay in host memory, and copies these in each step.

    Args:
        lane: makes the copies.
        device: the computing device.
        budget_bytes: maximum bytes of weights to offload.
        total_bytes: of all products that will be offered, about: the offloaded ones are spread evenly over them.

    Attributes:
        host_bytes: offloaded so far.
        buffer_bytes: of the buffers on the device; 0 before `finish`.
    """

    def __init__(self, lane: Lane, device: torch.device, budget_bytes: int, total_bytes: int) -> None:
        self._lane, self._device = lane, device
        self._budget, self._total = budget_bytes, total_bytes
        self._units: list[_Unit] = []
        self._buffers: list[torch.Tensor] = []
        self._offered_bytes = self._next = 0
        self.host_bytes = self.buffer_bytes = 0

    def offer(self, linear: Linear) -> Linear:
        """Returns the product itself, or one that does the same with weights in host memory.

        Offer products in the order in which a step computes them. Drop the given one if another is returned.
        """
        tensors = tensors_of(linear)
        size = sum(_aligned(tensor.nbytes) for tensor in tensors)
        self._offered_bytes += size
        share = self._budget / max(self._total, self._budget, 1)
        chosen_bytes = self.host_bytes + size
        if not size or chosen_bytes > self._budget or chosen_bytes > share * self._offered_bytes:
            return linear
        self.host_bytes = chosen_bytes
        host = self._lane.host_memory(size)
        views = _views(host, tensors)
        for view, tensor in zip(views, tensors, strict=True):
            view.copy_(tensor)
        streamed = StreamedLinear(self, len(self._units), _with_tensors(linear, tensors, views))
        self._units.append(_Unit(host, streamed))
        return streamed

    def finish(self) -> None:
        """Allocates the buffers; call it once after the last offer, before the first step."""
        sizes = [max((unit.host.nbytes for unit in self._units[slot::_SLOTS]), default=0) for slot in range(_SLOTS)]
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes]
        self.buffer_bytes = sum(sizes)
        for number, unit in enumerate(self._units):
            unit.streamed.move_to(self._buffers[number % _SLOTS])
        if self._budget > self._offered_bytes:
            _log.warning(
                "--cpu-offload-gb %.4g is more than the %.3g GiB of the layers' matrices: all of them are offloaded",
                self._budget / _GIB,
                self._offered_bytes / _GIB,
            )
        _log.info(
            "offloaded: %.1f MiB in host memory, with %.1f MiB of buffers on the GPU",
            self.host_bytes / _MIB,
            self.buffer_bytes / _MIB,
        )

    def begin(self) -> None:
        """Begins a step: starts copying the first weights."""
        self._next = 0
        if self._units:
            self._lane.follow()
        for number in range(min(_SLOTS, len(self._units))):
            self._copy(number)

    def arrive(self, number: int) -> None:
        """Makes the computation launched from now on wait until a product's weights are in its buffer."""
        if number < self._next:
            raise RuntimeError(f"offloaded product {number} runs after product {self._next - 1}, made later")
        while self._next < number:
            self.leave()  # the current product belongs to an expert that no token chose
        self._lane.await_copy(number % _SLOTS)

    def leave(self) -> None:
        """Declares that no later computation of the step uses the current product's weights."""
        following = self._next + _SLOTS
        self._next += 1
        if following < len(self._units):
            self._lane.follow()
            self._copy(following)

    def end(self) -> None:
        """Ends a step, which may have skipped its last layers."""
        if self._next < len(self._units):
            for slot in range(min(_SLOTS, len(self._units))):
                self._lane.await_copy(slot)

    def _copy(self, number: int) -> None:
        host, slot = self._units[number].host, number % _SLOTS
        self._lane.copy(slot, self._buffers[slot][: host.nbytes], host)


class StreamedLinear:
    """A product whose weights are copied to the device before it in each step.

    Args:
        offload: copies the weights.
        number: of the product.
        linear: over tensors in host memory, until `move_to`.
    """

    def __init__(self, offload: WeightOffload, number: int, linear: Linear) -> None:
        self._offload, self._number, self._linear = offload, number, linear

    def move_to(self, buffer: torch.Tensor) -> None:
        """Switches to tensors at the same offsets in a buffer, uint8 [bytes]."""
        tensors = tensors_of(self._linear)
        self._linear = _with_tensors(self._linear, tensors, _views(buffer, tensors))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        self._offload.arrive(self._number)
        result = self._linear(rows)
        self._offload.leave()
        return result


def tensors_of(part: object) -> list[torch.Tensor]:
    """All tensors that an object of this package holds, at any depth, each once."""
    visited: dict[int, object] = {}
    queue = [part]
    while queue:
        part = queue.pop()
        if id(part) not in visited:
            visited[id(part)] = part
            queue.extend(reversed(_parts(part)))
    return [part for part in visited.values() if isinstance(part, torch.Tensor)]


def _parts(part: object) -> list[object]:
    if isinstance(part, list | tuple):
        return list(cast("Sequence[object]", part))
    if not type(part).__module__.startswith("bakeoff.reference_engine."):
        return []
    if dataclasses.is_dataclass(part):
        return [getattr(part, field.name) for field in dataclasses.fields(part)]
    return list(vars(part).values()) if hasattr(part, "__dict__") else []


def _with_tensors(linear: Linear, old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> Linear:
    """A copy of a product in which the given tensors replace its own."""
    replacements = {id(before): after for before, after in zip(old, new, strict=True)}
    return _mapped(linear, lambda tensor: replacements[id(tensor)])


def _mapped(part: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401  (any attribute)
    """A copy of an object of this package in which each tensor is changed, at any depth."""
    if isinstance(part, torch.Tensor):
        return change(part)
    if isinstance(part, list | tuple):
        items = [_mapped(item, change) for item in cast("Sequence[Any]", part)]
        return items if isinstance(part, list) else tuple(items)
    if not type(part).__module__.startswith("bakeoff.reference_engine."):
        return part
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {field.name: _mapped(getattr(part, field.name), change) for field in dataclasses.fields(part)}
        return dataclasses.replace(part, **fields)
    changed = copy.copy(part)
    for name, value in vars(part).items():
        setattr(changed, name, _mapped(value, change))
    return changed


def _views(memory: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors like the given ones, contiguous and consecutive in memory, uint8 [bytes]."""
    views: list[torch.Tensor] = []
    first = 0
    for tensor in tensors:
        views.append(memory[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        first += _aligned(tensor.nbytes)
    return views


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
