"""A process that provokes an XID error: its kernel writes to an unallocated address. Only this process ends."""

import torch
import triton
import triton.language as tl


@triton.jit
def store_far_away(pointer, offset):  # noqa: ANN001, ANN201  (Triton reads no annotations)
    tl.store(pointer + offset, 1)


def main() -> None:
    store_far_away[(1,)](torch.zeros(1, device="cuda", dtype=torch.int32), 1 << 40)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
