"""Triton kernels on the CPU: import this before a module that has some.

The interpreter multiplies bfloat16 as if it were integers (Triton 3.6): products are tested in the other dtypes.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is defined

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor, scope):
    """NumPy 2.4 makes no integer of an array [1] by itself; Triton 3.6 takes the bounds of a loop so."""
    _patch(tensor, scope)
    tensor.__index__ = lambda self: self.handle.data.item()  # the scope takes it away again


interpreter._patch_lang_tensor = _patch_with_index
