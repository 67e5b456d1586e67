"""An engine around a fake runner, step by step, and a runner that knows what every slot of the cache holds."""

from collections import Counter

from bakeoff.reference_engine.ablations.contiguous import RunPool
from bakeoff.reference_engine.ablations.static_batching import StaticScheduler
from bakeoff.reference_engine.core.outputs import Candidate, SampledToken
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.core.scheduling_rules import Rules
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.engine.beam_search import BeamSearch
from bakeoff.reference_engine.engine.runner import Collected
from bakeoff.reference_engine.engine.step import Engine
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.block_table import EVERYTHING, RELEASED
from bakeoff.reference_engine.kv_cache.cache import Group, KvCache
from bakeoff.reference_engine.sampling import Sampler
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.scheduling.planner import draft_step, may_admit, plain_decodes
from bakeoff.reference_engine.scheduling.scheduler import Scheduler


class Bench:
    """An engine around a fake runner, with what each step computed. Without prefix caching unless asked for."""

    def __init__(
        self,
        runner,
        *,
        blocks=64,
        size=4,
        seqs=8,
        tokens=16,
        caching=False,
        visible=(EVERYTHING,),
        host=0,
        run=1,
        policy="continuous",
        **rules,
    ):
        self.now = 0.0
        self.short_cuts = 0
        self.groups = [
            Group(
                BlockPool(blocks, size) if run == 1 else RunPool(blocks, size, run),
                sees,
                BlockPool(host, size) if host else None,
            )
            for sees in visible
        ]
        self.pool = self.groups[0].pool
        self.runner = runner
        rules = Rules(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            policy="continuous" if policy == "static" else policy,
            preemption="swap" if host else "recompute",
            **rules,
        )
        kind = StaticScheduler if policy == "static" else Scheduler
        self.scheduler = kind(KvCache(self.groups, prefix_caching=caching), rules)
        limits = Limits(1000, blocks, size, 10_000, seqs)
        core = Engine(self.scheduler, runner, limits, clock=lambda: self.now)
        self.engine = BeamSearchEngine(core, clock=lambda: self.now)

    def add(self, *requests):
        for request in requests:
            self.engine.add(request)

    def step(self):
        self.check_short_cut()
        report = self.engine.step()
        self.engine.check_integrity()
        return report

    def check_short_cut(self):
        """Where the planner predicts a step without deciding anything, deciding gives the same step."""
        scheduler = self.scheduler
        if isinstance(scheduler, StaticScheduler):
            return  # it decides on every step
        soon = (
            None
            if may_admit(scheduler._queues, scheduler._rules)
            else plain_decodes(scheduler._queues, scheduler.cache, scheduler._rules)
        )
        if soon is not None:
            assert soon == draft_step(scheduler._queues, scheduler.cache, scheduler._rules)
            self.short_cuts += 1

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


def sample(logits, requests):
    """A token for each of several requests that nobody has sampled for before."""
    return Sampler().sample(logits, requests)


def request(name, prompt=4, output=3, salt=None, priority=0, n=1, **sampling):
    """`prompt`: token ids, or how many of them."""
    tokens = [1] * prompt if isinstance(prompt, int) else prompt
    params = SamplingParams(max_tokens=output, **sampling)
    if params.beams is not None:
        n = params.beams.width
    siblings = [Request(f"{name}/{number}", tokens, params, salt) for number in range(1, n)]
    return Request(name, tokens, params, salt, priority=priority, siblings=siblings)


class RememberingRunner:
    """Keeps in each slot of the cache which beginning of a sequence was computed there.

    Each chunk must find its own past in its blocks: a block that is given to two owners, found by mistake, evicted
    while in use, or lost on the way to host memory and back fails here, whatever the counts say. The next token follows
    from the beginning, so that sequences with the same prompt stay the same; siblings differ by their names.
    """

    def __init__(self, block_size, vocabulary, visible=(EVERYTHING,)):
        self.block_size = block_size
        self.vocabulary = vocabulary
        self.visible = visible
        self.slots = {}
        self.sampled = {}
        self.num_sampled = Counter()
        self.drawn_pending = 0
        self.drafts = Counter()
        self.steps = []
        self.padding = []
        self.copies = 0

    def launch(self, step, copies):
        self.padding.append(step.padding)
        self.copies += len(copies.within)
        for kind, source, target in (("to_host", "", "host"), ("to_device", "host", ""), ("within", "", "")):
            for group, read, write in getattr(copies, kind):
                for place in range(self.block_size):
                    self.slots[target, group, write, place] = self.slots.get((source, group, read, place))
        self.steps.append([(chunk.request.request_id, chunk.start, chunk.length) for chunk in step.chunks])
        pending = [chunk.request.sampling for chunk in step.chunks if chunk.request.num_pending]
        assert not any(sampling.needs_host for sampling in pending)
        self.drawn_pending += sum(not sampling.is_greedy for sampling in pending)
        numbers = [beginnings([*self.token_ids(chunk.request), *chunk.drafts]) for chunk in step.chunks]
        for chunk, expected in zip(step.chunks, numbers, strict=True):
            request = chunk.request
            assert chunk.end < request.prompt_len + request.sampling.max_tokens, "the last token is never fed back"
            if chunk.length > 1 and not chunk.drafts:
                assert chunk.end <= len(request.token_ids), "only a single token may be one that the host does not know"
            for slot, position in self.places(chunk, range(chunk.start, chunk.end)):
                self.slots[slot] = expected[position]
        for chunk, expected in zip(step.chunks, numbers, strict=True):
            for slot, position in self.places(chunk, range(chunk.end)):
                assert self.slots.get(slot) == expected[position], (
                    f"{chunk.request.request_id} reads what is not its own"
                )
        results = [
            (SampledToken(0, candidates=candidates(chunk.request.token_ids)),)
            if sequence.sampling.num_candidates
            else self.verified(chunk, expected, sequence)
            for chunk, expected in zip(step.chunks, numbers, strict=True)
            if chunk.is_sampled
            for sequence in chunk.request.output_sequences
        ]
        return Collected(results)

    def token_ids(self, request):
        """All tokens of a request, those that are still in flight among them."""
        return [*request.token_ids, *([self.sampled[request]] if request.num_pending else [])]

    def verified(self, chunk, numbers, sequence):
        """The drafts that are right, and the token behind them, each drawn with the next number of its request."""
        assert sequence.num_sampled == self.num_sampled[sequence]
        tokens = []
        for last in range(len(numbers) - len(chunk.drafts), len(numbers) + 1):
            tokens.append(next_token(numbers[:last], self.vocabulary, sequence.request_id))
            if last == len(numbers) or tokens[-1] != chunk.drafts[len(tokens) - 1]:
                break
        self.sampled[sequence] = tokens[-1]
        self.num_sampled[sequence] += len(tokens)
        if chunk.drafts:
            self.drafts.update(accepted=len(tokens) - 1, rejected=len(chunk.drafts) + 1 - len(tokens))
        return tuple(map(SampledToken, tokens))

    def guess(self, request, rng):
        """A few drafts for a request, of which most are right."""
        numbers = beginnings(self.token_ids(request))
        drafts = []
        for _ in range(rng.randint(1, 4)):
            drafts.append(next_token(numbers, self.vocabulary, request.request_id))
            if rng.random() < 0.3:
                drafts[-1] = (drafts[-1] + 1) % self.vocabulary
            numbers.append(hash((numbers[-1], drafts[-1])))
        return drafts

    def places(self, chunk, positions):
        """The slots of these positions in each group, those that no token of the chunk sees left out."""
        for group, (sees, table) in enumerate(zip(self.visible, chunk.block_tables, strict=True)):
            for position in positions:
                if sees.window is None or position > chunk.start - sees.window or position < sees.sinks:
                    block = table[position // self.block_size]
                    assert block != RELEASED, f"{chunk.request.request_id} gave back what it still sees"
                    yield ("", group, block, position % self.block_size), position


def beginnings(token_ids):
    """One number for each beginning of the tokens."""
    numbers, last = [], 0
    for token in token_ids:
        last = hash((last, token))
        numbers.append(last)
    return numbers


def next_token(numbers, vocabulary, name=""):
    """Siblings, whose names contain a slash, diverge."""
    return (numbers[-1] + (int(name.split("/")[1]) if "/" in name else 0)) % vocabulary


def candidates(token_ids):
    """All tokens that the runner knows as candidates of a beam, best first."""
    last = beginnings(token_ids)[-1]
    ways = [Candidate(SampledToken(token), -(hash((last, token)) % 1000) / 100) for token in range(6)]
    return tuple(sorted(ways, key=lambda way: -way.log_prob))


def search(prompt, params):
    """The hypotheses of a beam search that nothing else runs beside: their token ids, best first."""
    rules = BeamSearch(params.beams, params.stop_token_ids, params.max_tokens)
    while rules.beams:
        rules.advance(
            [candidates([*prompt, *(token.token_id for token in beam.tokens)]) for beam in rules.beams]
        )  # fmt: skip
    return [[token.token_id for token in hypothesis.tokens] for hypothesis in rules.hypotheses]
