"""Measures, rather than estimates, how much of a GPU's memory weights and the largest step leave for the KV cache."""

from collections.abc import Callable
from typing import Any

import torch

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.block_table import block_list
from bakeoff.reference_engine.kv_cache.sizing import Demand
from bakeoff.reference_engine.models.execution import SLAB_ROWS, Batch

RESERVED_SHARE = 0.03
"""Share of a GPU's memory that stays free, if other processes hold much of it, for CUDA graphs and fragmentation, which
no measured step shows."""


class GpuBudget:
    """The memory that this process may use. Create it before the model is loaded.

    Args:
        device: the GPU.
        share: of its total memory.
        cuda: torch.cuda; tests pass a fake.
    """

    def __init__(self, device: torch.device, share: float, cuda: Any = torch.cuda) -> None:  # noqa: ANN401  (a module)
        self._device, self._cuda = device, cuda
        free, total = cuda.mem_get_info(device)
        reserved = cuda.memory_reserved(device)
        self._outside = total - free - reserved  # other processes, and this one's CUDA context
        self.total = total
        self.most: int = min(int(total * share), free + reserved - int(total * RESERVED_SHARE))

    def left(self, step: Callable[[], object]) -> int:
        """Bytes that remain at the peak of a step; not above 0 if it takes all of them.

        Args:
            step: computes the largest step, with everything loaded that stays.
        """
        cuda, device = self._cuda, self._device
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(device)
        step()
        cuda.synchronize(device)
        cuda.empty_cache()
        free, total = cuda.mem_get_info(device)
        libraries = total - free - cuda.memory_reserved(device) - self._outside  # such as cuBLAS and NCCL
        return self.most - cuda.max_memory_allocated(device) - max(0, libraries)


def largest_batch(demand: Demand, max_rows: int) -> tuple[Batch, int]:
    """The batch with the most tokens, sampled rows and scored rows that a step can have; and the KV blocks it needs.

    As many sequences as may run share the tokens of a step: the first ones have as many as possible, the rest one.

    Args:
        demand: of sequences.
        max_rows: sampled ones of a step.
    """
    spans: list[Span] = []
    left, needed = demand.max_num_batched_tokens, 0
    for seats_left in range(demand.max_num_seqs - 1, -1, -1):
        length = min(demand.max_model_len, left - seats_left)
        blocks = -(-length // demand.block_size)
        table = block_list(range(needed, needed + blocks))
        spans.append(Span([table] * len(demand.layout.groups), 0, length))
        left, needed = left - length, needed + blocks
    positions = [position for span in spans for position in range(span.length)]
    ends = [0]
    for span in spans:
        ends.append(ends[-1] + span.length)
    sampled = [end - 1 for end in ends[1:]]
    sampled += [sampled[-1]] * (max_rows - len(sampled))
    scored = list(range(min(SLAB_ROWS, len(positions))))
    batch = Batch(BlockCopies(), spans, [0] * len(positions), positions, sampled, scored)
    return batch, needed
