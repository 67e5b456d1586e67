"""Programmatic dependent launch: the kernels of a small step start while the previous ones are ending.

A chain of small kernels loses about half a microsecond at each link (NVIDIA's CUDA C++ Programming Guide, "Programmatic
Dependent Launch and Synchronization"). A kernel that starts early must call `await_inputs`, directly or indirectly,
before it reads or writes anything that another kernel of the step touches. Import this module only where `has_triton`
is true, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN201, N803
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import functools
from typing import Any

import torch
import triton
import triton.language as tl

_MAX_ROWS = 32
"""Rows of a step; in larger ones waiting kernels would take room from running ones."""
_CAPABILITY = 9


def early_start(rows: torch.Tensor, count: int | None) -> dict[str, Any]:
    """Arguments of a launch whose kernel takes `EARLY`.

    Args:
        rows: a tensor on the device.
        count: rows of the step; None where all steps must run the same compiled kernel, which then starts late.
    """
    if count is None or count > _MAX_ROWS or not rows.is_cuda or not _can_start_early(rows.device):
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


@functools.cache
def _can_start_early(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= _CAPABILITY


@triton.jit
def await_inputs(EARLY: tl.constexpr):
    """Waits for the previous kernel, then lets the next one start; any earlier it would take SMs from this one."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
