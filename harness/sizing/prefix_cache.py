"""Prompt tokens that the prefix cache finds while sessions of a workload are in progress, by its size."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.device import DevicePlan
from bakeoff.harness.sizing.memory import Memory
from bakeoff.workloads import NoTokenizer, Seed, Workload
from bakeoff.workloads.outline import SessionOutline, outlines
from bakeoff.workloads.prefix_hits import DECODE_TOKENS_PER_S, PrefixHits, timeline
from bakeoff.workloads.profile import SESSIONS, sampled

IN_PROGRESS = 8
"""Default number of sessions in progress."""
_SESSIONS_PER_SLOT, _DROPPED_SHARE = 8, 3 / 8
"""Sessions drawn for each in progress at least, and the share of the simulated time that does not count."""
_FEWEST_PER_SLOT = 2
_SEGMENTS = 1_000_000
"""Segments of prompts after which no more sessions are drawn than needed."""
_PERCENTS = (90, 95, 99)


class SessionLoad(msgspec.Struct, frozen=True):
    """Sessions in progress at once.

    Attributes:
        name: of the workload, as the user gave it.
        option_texts: its options as ``key=value``.
        workload: the workload.
        sessions: in progress at any time.
    """

    name: str
    option_texts: tuple[str, ...]
    workload: Workload
    sessions: int = IN_PROGRESS


class CacheSize(msgspec.Struct, frozen=True):
    """A prefix cache of one size.

    Attributes:
        tokens: its size.
        bytes: the same, in KV cache of the model on all GPUs.
        hit_share: share of the prompt tokens that it finds.
    """

    tokens: int
    bytes: float
    hit_share: float


class DeviceCache(msgspec.Struct, frozen=True):
    """The prefix cache of a planned device.

    Attributes:
        gpu: name.
        ranks: GPUs of tensor parallelism.
        room: what fits beside the weights; None if the model does not fit.
    """

    gpu: str
    ranks: int
    room: CacheSize | None


class PrefixCachePlan(msgspec.Struct, frozen=True):
    """The prefix cache under a load of sessions, in its long run.

    Attributes:
        workload: name or path.
        options: of the workload, as ``key=value``.
        sessions: in progress at once.
        drawn_sessions: simulated in all.
        calls: that count.
        longest_prompt_tokens: of the drawn sessions.
        unlimited_share: share of the prompt tokens that an unlimited cache finds.
        held_mean_tokens: prompts and answers of the calls in progress when a call starts, that call included.
        held_max_tokens: the largest number of these.
        sizes: caches in powers of two of their bytes, smallest first; empty if nothing can be found.
        enough: percentage of the unlimited share → smallest cache that reaches it; empty if nothing can be found.
        devices: one for each planned device.
        is_planned: whether requests find what the device's cache has room for; no if the question gives their share.
    """

    workload: str
    options: list[str]
    sessions: int
    drawn_sessions: int
    calls: int
    longest_prompt_tokens: int
    unlimited_share: float
    held_mean_tokens: float
    held_max_tokens: int
    sizes: list[CacheSize]
    enough: dict[int, CacheSize]
    devices: list[DeviceCache]
    is_planned: bool


class SimulatedLoad(msgspec.Struct, frozen=True):
    """A load of sessions and what caches find in it.

    Attributes:
        load: the load.
        drawn: the simulated sessions.
        hits: of the calls that count.
    """

    load: SessionLoad
    drawn: list[SessionOutline]
    hits: PrefixHits

    @property
    def input_tokens(self) -> int:
        """Of the mean prompt."""
        return max(1, round(statistics.fmean(turn.input_tokens for session in self.drawn for turn in session.turns)))

    @property
    def output_tokens(self) -> int:
        """Of the mean answer."""
        return max(1, round(statistics.fmean(turn.output_tokens for session in self.drawn for turn in session.turns)))

    @property
    def assumption(self) -> str:
        """How it was simulated."""
        return (
            f"sessions: {len(self.drawn):,} of them, one after another in each of {self.load.sessions:,} slots, at "
            f"{DECODE_TOKENS_PER_S:.0f} tokens/s a call; the first three eighths of the time until the last one starts "
            f"do not count, {len(self.hits.held_tokens):,} calls do"
        )

    def share_on(self, memory: Memory) -> float:
        """Share of the prompt tokens that is found in what a device has beside the weights."""
        return self.hits.share(_room_tokens(memory))

    def plan(self, devices: Sequence[DevicePlan], bytes_per_token: float, *, is_planned: bool) -> PrefixCachePlan:
        """The plan of the prefix cache.

        Args:
            devices: the planned ones.
            bytes_per_token: of the KV cache.
            is_planned: whether the devices' requests find what their caches have room for.
        """
        hits, load = self.hits, self.load
        longest = max(turn.input_tokens for session in self.drawn for turn in session.turns)
        unlimited = hits.share()

        def sized(tokens: int) -> CacheSize:
            return CacheSize(tokens, tokens * bytes_per_token, hits.share(tokens))

        return PrefixCachePlan(
            workload=load.name,
            options=list(load.option_texts),
            sessions=load.sessions,
            drawn_sessions=len(self.drawn),
            calls=len(hits.held_tokens),
            longest_prompt_tokens=longest,
            unlimited_share=unlimited,
            held_mean_tokens=statistics.fmean(hits.held_tokens),
            held_max_tokens=max(hits.held_tokens),
            sizes=[sized(tokens) for tokens in _sizes(longest, hits.largest_tokens, bytes_per_token)],
            enough={percent: sized(hits.size_for(unlimited * percent / 100)) for percent in _PERCENTS}
            if unlimited
            else {},
            devices=[
                DeviceCache(
                    device.gpu.name,
                    device.ranks,
                    None if device.why_not else sized(_room_tokens(device.memory)),
                )
                for device in devices
            ],
            is_planned=is_planned,
        )


def simulate_load(load: SessionLoad, seed: int) -> SimulatedLoad:
    """Simulate a load.

    Raises:
        BadPlan: prompts must be written to count their tokens, or there are too few sessions.
        WorkloadError: something is wrong with the workload or its file.
    """
    try:
        drawn = list(_drawn(load, seed))
    except NoTokenizer as error:
        raise BadPlan(
            f"the lengths of {load.name} are known only once its prompts are written for a tokenizer; give a "
            "--workload that has lengths, such as agent-coding, or give --input, --output and --cached-share instead"
        ) from error
    played = timeline(drawn, load.sessions)
    first, end = (
        bisect_left(played.calls, share * played.last_session_s, key=lambda call: call.start_s)
        for share in (_DROPPED_SHARE, 1.0)
    )
    if len(drawn) < _FEWEST_PER_SLOT * load.sessions or first == end:
        most = min(load.sessions - 1, len(drawn) // _FEWEST_PER_SLOT)
        lower = f"lower --sessions to {most:,}, or " if most else ""
        raise BadPlan(
            f"{load.name} has {_counted(len(drawn))} to simulate, too few for {load.sessions:,} in progress; {lower}"
            "repeat a trace with --option repeat=true --option salt=true"
        )
    return SimulatedLoad(load, drawn, PrefixHits(played.calls, range(first, end)))


def _drawn(load: SessionLoad, seed: int) -> Iterator[SessionOutline]:
    """Enough sessions for the long run, and more of them if they are short."""
    segments = 0
    for count, session in enumerate(sampled(outlines(load.workload, Seed.of(str(seed)))), 1):
        yield session
        segments += sum(len(turn.segments) for turn in session.turns)
        if count >= _SESSIONS_PER_SLOT * load.sessions and (count >= SESSIONS or segments >= _SEGMENTS):
            return


def _counted(sessions: int) -> str:
    return f"{sessions:,} session{'' if sessions == 1 else 's'}"


def _room_tokens(memory: Memory) -> int:
    return max(0, int(memory.for_kv // memory.kv_per_token))


def _sizes(longest: int, largest: int, bytes_per_token: float) -> list[int]:
    """Sizes in tokens, in powers of two of their bytes, from the longest prompt to all that can be found."""
    if not largest:
        return []
    low, high = (math.log2(tokens * bytes_per_token) for tokens in (min(longest, largest), largest))
    return [int(2.0**power // bytes_per_token) for power in range(math.floor(low), math.ceil(high) + 1)]
