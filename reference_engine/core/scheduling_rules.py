"""Settings of the planner: sizes, and choices."""

import dataclasses
from typing import Literal

PolicyName = Literal["continuous", "no_chunking"]
PreemptionName = Literal["recompute", "swap"]
"""How a request is preempted and comes back (PagedAttention, SOSP'23, §4.5)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings of the scheduler.

    Attributes:
        max_num_seqs: requests that may run at the same time.
        max_num_batched_tokens: tokens per step, at least max_num_seqs.
        policy: `continuous`: requests join and leave after every step (Orca, OSDI'22), and long prompts are cut into
            chunks that fill what the decodes leave of the token budget (Sarathi-Serve, OSDI'24). `no_chunking`: the
            same with every prompt in one piece. Static batching is `ablations/static_batching.py`.
        preemption: what happens to the blocks of a preempted request; `swap` falls back on `recompute` if host memory
            is full.
        patience_steps: by how many steps one level of priority sends a request forward in the queue. A request can
            therefore be overtaken for a bounded time only, whatever arrives.
        max_waiting: requests that may wait; more are refused. None: any number.
        headroom_tokens: tokens by which each running request must be able to grow after an admission before another one
            is preempted for it.
        least_piece: tokens of a prompt's first piece, at least, unless it is all that is left of the prompt or no other
            prompt is computed. A GPU attends to long pieces faster, and a short one leaves every later prompt cut.
        max_mixed_tokens: tokens of a step that computes decodes and prompts, where two such steps hold all prompts that
            wait, and the decodes leave at least half of them. None: as many as in other steps. A GPU computes a step
            that is little longer than its largest CUDA graph in less time than its launches take; of many long prompts,
            larger steps are faster.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: PolicyName = "continuous"
    preemption: PreemptionName = "recompute"
    patience_steps: int = 256
    max_waiting: int | None = None
    headroom_tokens: int = 8
    least_piece: int = 1
    max_mixed_tokens: int | None = None
