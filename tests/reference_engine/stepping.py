"""An engine around a fake runner, step by step, and a runner that knows what every slot of the cache holds."""

from reference_engine.batching_policy import make_policy
from reference_engine.engine import Engine
from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.limits import Limits
from reference_engine.request import Request, SampledToken, SamplingParams
from reference_engine.scheduler import Scheduler


class Bench:
    """An engine around a fake runner, with what each step computed. Without prefix caching unless asked for."""

    def __init__(self, runner, *, blocks=64, size=4, seqs=8, tokens=16, policy="continuous", caching=False):
        self.now = 0.0
        self.pool = BlockPool(blocks, size)
        self.runner = runner
        self.scheduler = Scheduler(
            self.pool,
            make_policy(policy, seqs),
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            enable_prefix_caching=caching,
        )
        self.engine = Engine(self.scheduler, runner, Limits(1000, blocks, size, 10_000), clock=lambda: self.now)

    def add(self, *requests):
        for one in requests:
            self.engine.add(one)

    def step(self):
        report = self.engine.step()
        self.engine.check_integrity()
        return report

    def steps(self, count):
        for _ in range(count):
            self.step()
        return self.runner.steps[-count:]

    def finish(self, *requests):
        """Steps until everything has ended; the reports."""
        self.add(*requests)
        reports = []
        while self.engine.has_work:
            reports.append(self.step())
        return reports


def request(name, prompt=4, output=3, salt=None, **sampling):
    """`prompt`: token ids, or how many of them."""
    tokens = [1] * prompt if isinstance(prompt, int) else prompt
    return Request(name, tokens, SamplingParams(max_tokens=output, **sampling), salt)


class RememberingRunner:
    """Keeps in each slot of the cache which beginning of a sequence was computed there.

    Each chunk must find its own past in its blocks: a block that is given to two owners, found by mistake or evicted
    while in use fails here, whatever the counts say. The next token follows from the beginning, so that sequences
    with the same prompt stay the same.
    """

    def __init__(self, block_size, vocabulary):
        self.block_size = block_size
        self.vocabulary = vocabulary
        self.slots = {}

    def run(self, chunks):
        known = [beginnings(chunk.request.token_ids) for chunk in chunks]
        for chunk, expected in zip(chunks, known, strict=True):
            for position in range(chunk.start, chunk.end):
                self.slots[self.slot(chunk, position)] = expected[position]
        for chunk, expected in zip(chunks, known, strict=True):
            found = [self.slots.get(self.slot(chunk, position)) for position in range(chunk.end)]
            assert found == expected[: chunk.end], f"request {chunk.request.request_id} reads what is not its own"
        return [
            SampledToken(next_token(expected, self.vocabulary)) if chunk.is_sampled else None
            for chunk, expected in zip(chunks, known, strict=True)
        ]

    def slot(self, chunk, position):
        return chunk.request.table.blocks[position // self.block_size], position % self.block_size


def beginnings(token_ids):
    """One number for each beginning of the tokens."""
    numbers, last = [], 0
    for token in token_ids:
        last = hash((last, token))
        numbers.append(last)
    return numbers


def next_token(numbers, vocabulary):
    return numbers[-1] % vocabulary
