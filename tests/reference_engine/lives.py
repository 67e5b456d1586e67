"""Random lives of an engine without a model: requests of every kind come, fork, are cancelled, preempted and end."""

import random
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bakeoff.reference_engine.core.request import BeamParams
from bakeoff.reference_engine.errors import QueueFullError
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.scheduling.limits import Limits
from tests.reference_engine.stepping import Bench, RememberingRunner, beginnings, next_token, request, search

VOCABULARY = 2  # few tokens, so that prompts often begin alike
GROUPS = (
    (Visible(),),
    (Visible(window=7),),
    (Visible(), Visible(window=5, sinks=3)),
)
TOKENS = 8  # in a step
GREEDY, DRAWN, ON_HOST = {"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "logprobs": 0}
CHOICES = (GREEDY, GREEDY, DRAWN, DRAWN, ON_HOST)


class Life(RuleBasedStateMachine):
    """After every step the page tables are audited, contents are what they should be, and nobody waits too long."""

    @initialize(
        blocks=st.integers(10, 24),
        size=st.sampled_from([1, 2, 4]),
        seqs=st.integers(1, 6),
        policy=st.sampled_from(["continuous", "no_chunking", "static"]),
        caching=st.booleans(),
        host=st.sampled_from([0, 5, 40]),
        visible=st.sampled_from(GROUPS),
        contiguous=st.booleans(),
        headroom=st.sampled_from([0, 8]),
        piece=st.sampled_from([1, 5]),
        mixed=st.sampled_from([None, 1, 4]),
        stages=st.sampled_from([1, 2, 3]),
    )
    def start(self, blocks, size, seqs, policy, caching, host, visible, contiguous, headroom, piece, mixed, stages):
        self.room = blocks * size
        run = 1
        if contiguous and len(visible) == 1 and visible[0].window is None:
            run, caching = 5, False
            self.room = run * size
        if visible == GROUPS[1] and policy == "continuous":
            self.room = 3 * blocks * size  # blocks come free again
            blocks = -(-(7 + TOKENS) // size) + 2 + blocks % 4  # the engine starts with no fewer
        self.runner = RememberingRunner(size, VOCABULARY, visible)
        self.bench = Bench(
            self.runner, blocks=blocks, size=size, seqs=seqs, tokens=TOKENS, caching=caching, visible=visible,
            host=host, run=run, policy=policy, patience_steps=20, max_waiting=12, headroom_tokens=headroom,
            least_piece=piece, max_mixed_tokens=mixed,
        )  # fmt: skip
        self.bench.engine.core.limits = Limits(1000, -(-self.room // size), size, 10_000, seqs)
        self.seqs, self.policy, self.can_fork = seqs, policy, run == 1
        self.live, self.made, self.counts, self.beam_tokens, self.families = {}, 0, Counter(), {}, {}
        self.num_reported = Counter()
        self.rng, self.stages = random.Random(blocks), stages

    @rule(
        prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
        output=st.integers(1, 12),
        n=st.integers(1, 4),
        priority=st.integers(0, 2),
        how=st.sampled_from([None, None, False, True, "never"]),
        choice=st.sampled_from(CHOICES),
    )
    def add(self, prompt, output, n, priority, how, choice):
        prompt = prompt[: self.room]
        output = min(output, self.room + 1 - len(prompt))
        n = min(n, self.seqs) if self.can_fork else 1
        sampling = choice | {"stop_token_ids": frozenset({1} if output % 5 == 0 else ())}
        if how is not None and n > 1 and self.policy != "static":
            sampling |= {"beams": BeamParams(n, n / 2, how), "stop_token_ids": frozenset({5})}
        leader = request(str(self.made), prompt, output, priority=priority, n=n, **sampling)
        self.made += 1
        try:
            family = [leader, *leader.siblings]
            self.bench.add(leader)
        except QueueFullError:
            self.counts["refused"] += 1
            return
        self.counts["forked"] += n - 1
        self.live |= {member.request_id: member for member in family}
        self.families |= {member.request_id: family for member in family}

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.drop(name)

    def drop(self, name):
        dropped = self.live[name]
        if dropped.sampling.beams is not None:
            for member in self.families[name]:
                del self.live[member.request_id]
                self.beam_tokens.pop(member.request_id, None)
                self.bench.engine.cancel(member.request_id)
            return
        if "/" in name and name not in self.bench.scheduler._requests:
            return  # not forked off yet: it goes with its leader
        for member in (dropped, *dropped.siblings):
            del self.live[member.request_id]
        self.bench.engine.cancel(name)

    @rule()
    def forget(self):
        self.bench.engine.reset_prefix_cache()

    @rule(count=st.integers(1, 8))
    def steps(self, count):
        for _ in range(count):
            self.step()

    def choose(self):
        """Sometimes launch ahead, and sometimes verify drafts."""
        engine, queues = self.bench.engine.core, self.bench.scheduler._queues
        engine.overlap = self.policy != "static" and self.rng.random() < 0.7
        engine._stages = self.stages
        if self.policy != "static" and self.rng.random() < 0.3:
            for request in queues.running:
                if request.sampling.beams is None and not request.siblings and self.rng.random() < 0.5:
                    request.draft_token_ids = self.runner.guess(request, self.rng)

    def step(self):
        self.choose()
        report = self.bench.step()
        ahead = self.bench.engine.core._in_flight
        chunks = [chunk for launched in ahead for chunk in launched.step.chunks]
        overshot = sum(not self.bench.engine.core.has(chunk.request) for chunk in chunks)
        self.counts.update(ahead=bool(ahead), several=len(ahead) > 1, overshot=overshot)
        if self.policy == "continuous":
            assert report.computed_tokens <= TOKENS
        self.counts.update(
            steps=1, preemptions=report.preemptions, swaps=report.swaps, evicted=report.evicted_blocks,
            cached=report.cached_tokens, finished=sum(bool(output.finish_reason) for output in report.outputs),
            released=self.released(), settled=self.settled(), robbed=self.settled(robbed=True),
        )  # fmt: skip
        for output in report.outputs:
            request = self.live[output.request_id]
            if request.sampling.beams is not None:
                self.listen(request, output)
                continue
            known_ids = request.token_ids[: request.prompt_len + self.num_reported[output.request_id]]
            assert output.token.token_id == next_token(beginnings(known_ids), VOCABULARY, request.request_id)
            self.num_reported[output.request_id] += 1
            if output.finish_reason:
                del self.live[output.request_id]
        assert report.outputs or report.computed_tokens or report.preemptions or not self.live

    def listen(self, request, output):
        """A search reports the tokens that it would have reported alone."""
        tokens = self.beam_tokens.setdefault(request.request_id, [])
        tokens.append(output.token.token_id)
        if output.finish_reason:
            members = self.families[request.request_id]
            assert tokens == search(request.token_ids[: request.prompt_len], request.sampling)[members.index(request)]
            assert output.finish_reason == ("stop" if tokens[-1] == 5 else "length")
            self.counts["searched"] += 1
            del self.live[request.request_id], self.beam_tokens[request.request_id]

    def settled(self, *, robbed=False):
        """Beams that wait for others, or those of them that have lost their blocks."""
        queues = self.bench.scheduler._queues
        ids = {request.request_id for request in queues.waiting} if robbed else self.live.keys()
        return len(queues.paused & ids)

    def released(self):
        page_tables = self.bench.scheduler.cache._blocks
        return sum(
            table.blocks.count(-1) for name in self.live.keys() & page_tables for table in page_tables[name].tables
        )

    @invariant()
    def audited(self):
        if hasattr(self, "bench"):
            self.bench.engine.check_integrity()
            assert sum(request.width for request in self.bench.scheduler._queues.running) <= self.seqs

    def teardown(self):
        """Without further requests, every request ends, and every block is free."""
        if not hasattr(self, "bench"):
            return
        patience = 0
        while self.bench.engine.has_work:
            self.step()
            patience += 1
            assert patience < 3000, "a request never ends"
        assert not self.live
        assert not self.beam_tokens
        assert [group.pool.num_used for group in self.bench.groups] == [0] * len(self.bench.groups)
        assert not any(group.host.num_used for group in self.bench.groups if group.host)


def random_life(seed, steps):
    """The same without Hypothesis, many times faster; returns what happened how often."""
    rng = random.Random(seed)
    life = Life()
    life.start(
        blocks=rng.randint(10, 24), size=rng.choice([1, 2, 4]), seqs=rng.randint(1, 6),
        policy=rng.choice(["continuous", "continuous", "no_chunking", "static"]), caching=rng.random() < 0.7,
        host=rng.choice([0, 5, 40]), visible=rng.choice(GROUPS), contiguous=rng.random() < 0.2,
        headroom=rng.choice([0, 8]), piece=rng.choice([1, 5]),
        stages=rng.choice([1, 1, 2, 3]), mixed=(1, None, 4)[seed % 3],
    )  # fmt: skip
    for _ in range(steps):
        if rng.random() < 0.35:
            alike = rng.random() < 0.5
            prompt = [1 if alike else rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]
            how = rng.choice([None, None, False, True, "never"])
            n, priority, choice = rng.choice([1, 1, 2, 3, 4]), rng.randrange(3), rng.choice(CHOICES)
            life.add(prompt, rng.randint(1, 12), n, priority, how, choice)
        if life.live and rng.random() < 0.05:
            life.drop(rng.choice(sorted(life.live)))
            life.counts["cancelled"] += 1
        if rng.random() < 0.01:
            life.forget()
        life.step()
    life.teardown()
    life.counts.update(short_cuts=life.bench.short_cuts, **life.runner.drafts, drawn_pending=life.runner.drawn_pending)
    return life.counts
