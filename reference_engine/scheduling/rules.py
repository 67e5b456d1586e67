"""What the planner goes by: sizes, and the choices between which an ablation switches."""

import dataclasses
from typing import Literal

PolicyName = Literal["continuous", "no_chunking"]
PreemptionName = Literal["recompute", "swap"]
"""How a request makes room for others and comes back (PagedAttention, SOSP'23, §4.5)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings of the scheduler.

    Attributes:
        max_num_seqs: requests that may run at the same time.
        max_num_batched_tokens: tokens per step, at least max_num_seqs.
        policy: `continuous`: requests join and leave after every step (Orca, OSDI'22), and long prompts are cut into
            chunks that fill what the decodes leave of the token budget (Sarathi-Serve, OSDI'24). `no_chunking`: the
            same with every prompt in one piece. Static batching is `ablations/static_batching.py`.
        preemption: what becomes of the blocks of a request that has to make room; `swap` falls back on `recompute`
            where host memory is full.
        patience_steps: by how many steps one level of priority sends a request forward in the queue. A request can
            therefore be overtaken for a bounded time only, whatever arrives.
        max_waiting: requests that may wait; more are refused. None: any number.
        headroom_tokens: by how many tokens each running request can grow after an admission, before another one is
            preempted for it.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: PolicyName = "continuous"
    preemption: PreemptionName = "recompute"
    patience_steps: int = 256
    max_waiting: int | None = None
    headroom_tokens: int = 8
