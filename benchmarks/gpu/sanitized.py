"""Two small shapes of each kernel, for NVIDIA's memory checker, under which all shapes would take hours.

    compute-sanitizer --tool memcheck python -m benchmarks.gpu.sanitized

Give the checker ``--error-exitcode 1``, too: its findings do not change the exit status otherwise.
"""

import itertools

import torch

from bakeoff.reference_engine.kernels import invariant_products, row_codes, small_products
from bakeoff.reference_engine.kernels.cuda import CudaKernels
from benchmarks.bars import Bars
from benchmarks.gpu.parts import coded, correctness, experts

CODED = ("int4", "int4-zp", "int8", "fp8", "nf4", "Q4_K", "Q6_K")
"""One layout of each kind that the kernels distinguish."""
_EXPERT_CASES = 12  # two shapes, in both modes


@torch.inference_mode()
def main() -> None:
    kernels = CudaKernels()
    for rows, dim in ((3, 45), (5, 576)):
        residual, x, weight = (correctness.random_rows(*shape) for shape in ((rows, dim), (rows, dim), (dim,)))
        kernels.add_rms_norm(residual, x, weight, 1e-5)
        kernels.silu_mul(correctness.random_rows(rows, 2 * dim))
        kernels.argmax(torch.randn(rows, dim, device="cuda"))
        row_codes.scaled_codes(x)
    for rows in (1, 7):
        x, weight = correctness.random_rows(rows, 1024), correctness.random_rows(128, 1024)
        small_products.multiply(x, weight)
        invariant_products.multiply_invariantly(x, weight)
    for name in CODED:
        inputs = coded.odd_inputs(name)
        product = coded.matrix_of(name, 128, inputs).linear(correctness.random_rows(128))
        for rows in (1, 7, 70, 600):
            product(correctness.random_rows(rows, inputs))
    cases = [correctness.PLAIN_CASES[0], *correctness.QUANTISED[:4]]
    errors = list(correctness.case_errors(cases))
    torch.cuda.synchronize()
    bars = Bars()
    bars.add("attention error", max(error for name, error in errors if not name.endswith("long")), "<=", 1e-2)
    bars.add("attention error, long chunks", max(error for _, error in errors), "<=", 3e-2)
    bars.add(
        "error of experts", max(error for _, error in itertools.islice(experts.errors(), _EXPERT_CASES)), "<=", 1e-2
    )
    bars.finish()


if __name__ == "__main__":
    main()
