"""Makes Triton's interpreter run with NumPy 2.4; import this before a kernel is called.

The interpreter multiplies bfloat16 as if it were integers (Triton 3.6): products are tested in the other dtypes.
"""

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor, scope):
    """Triton 3.6 takes the bounds of a loop as int(array), which NumPy 2.4 refuses for an array [1]."""
    _patch(tensor, scope)
    tensor.__index__ = lambda self: self.handle.data.item()  # until the scope ends


interpreter._patch_lang_tensor = _patch_with_index
