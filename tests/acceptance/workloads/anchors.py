"""Generators meet their anchors, and a replayed trace shares its prefixes.

Checks Poisson arrivals; every anchor of every preset, over ten times the sample that ``workloads show`` draws and for
three seeds; and Mooncake's conversation trace (``--data``). Each of its requests is encoded as for the socket; the
prompt is extracted from those bytes, encoded as a whole, and looked up in an unbounded prefix cache.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import tokenizers

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client.wire.plan import wire_sessions
from bakeoff.workloads import EndlessCache, PlannedSession, Replay, Seed, Tokenizer, arrival, workload
from bakeoff.workloads.dispersion import ArrivalStatistics
from bakeoff.workloads.presets import preset_names
from bakeoff.workloads.profile import profile_workload
from benchmarks.bars import Bars, model_argument

SEEDS = ("1", "2", "3")
ARRIVALS, SESSIONS, AGENTIC_SESSIONS = 1_000_000, 10_000, 700
AGENTIC = ("agent-coding", "agentic-tools", "deep-research")
MOONCAKE, BLOCK_TOKENS, BATCH = "mooncake-fast25/conversation_trace.jsonl.gz", 512, 32


class Body(msgspec.Struct):
    """The part of a request's body that is read here."""

    prompt: str


def poisson(bars: Bars) -> None:
    """Check the gaps and counts of a Poisson process."""
    values_by_seed = []
    for seed in SEEDS:
        timing = ArrivalStatistics()
        timing.add_all(itertools.islice(arrival("poisson", 5.0).offsets_s(seed), 100_000))
        values_by_seed.append((timing.gap_cv or 0.0, timing.dispersion(10) or 0.0))
    for name, values, tolerance in zip(("cv", "idc_10s"), zip(*values_by_seed, strict=True), (0.02, 0.2), strict=True):
        worst = max(abs(value - 1) for value in values)
        print(f"poisson {name}: {', '.join(f'{value:.3f}' for value in values)}")
        bars.add(f"poisson_{name}_off", worst, "<=", tolerance)


def anchors(bars: Bars) -> None:
    """Check the median over seeds of every anchor of every preset."""
    missed = 0
    for name in preset_names():
        sessions = AGENTIC_SESSIONS if name in AGENTIC else SESSIONS
        profiles = [
            profile_workload(name, workload(name, {}), Seed.of(seed), sessions=sessions, arrivals=ARRIVALS)
            for seed in SEEDS
        ]
        for anchor in profiles[0].anchors:
            value = statistics.median(profile.figures[anchor.metric] for profile in profiles)
            met = anchor.low <= value <= anchor.high
            missed += not met
            print(
                f"{name:20} {anchor.metric:22} {value:12,.3f}  wanted {anchor.low:,g}–{anchor.high:,g}"
                f"{'' if met else '  MISSED'}",
                flush=True,
            )
    bars.add("anchors_missed", missed, "==", 0)


def replayed(bars: Bars, trace: Path, model: Path, scale: float) -> None:
    """Check the prefixes and lengths of Mooncake's conversation trace as it is sent."""
    replay = workload("trace", {"path": str(trace), "format": "mooncake", "scale": scale})
    assert isinstance(replay, Replay)
    planned = (PlannedSession(session, None) for session in replay.sessions(Tokenizer(model), Seed.of("1")))
    wire = wire_sessions(planned, ReferenceDialect(), "model")
    bodies = (turn.request.body for session in wire for turn in session.turns)
    wanted = (turn.input_tokens for session in replay.outlines(Seed.of("1")) for turn in session.turns)
    cache, off = EndlessCache(round(BLOCK_TOKENS * scale)), 0
    for ids, tokens in zip(encoded(bodies, model), wanted, strict=True):
        cache.add(ids)
        off += len(ids) != tokens
    bound = cache.hit_tokens / cache.prompt_tokens
    print(f"Mooncake conversation: {cache.prompt_tokens:,} tokens sent, {off} prompts off, bound {bound:.4f}")
    bars.add("mooncake_prefix_bound_off", abs(bound - 0.374), "<=", 0.002)
    bars.add("mooncake_prompts_off", off, "==", 0)


def encoded(bodies: Iterable[bytes], model: Path) -> Iterator[list[int]]:
    """The token ids of each request's prompt, encoded by the library alone."""
    tokenizer, decoder = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")), msgspec.json.Decoder(Body)
    for batch in batches(bodies):
        for encoding in tokenizer.encode_batch_fast([decoder.decode(body).prompt for body in batch]):
            yield encoding.ids


def batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Batches that are large enough to keep all cores busy."""
    source = iter(bodies)
    while batch := list(itertools.islice(source, BATCH)):
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the trace's lengths; 1 takes ten minutes")
    options = parser.parse_args()
    trace = options.data / MOONCAKE
    if not trace.is_file():
        sys.exit(f"{trace} is not there; give the folder that has {MOONCAKE} with --data")
    bars = Bars()
    poisson(bars)
    anchors(bars)
    replayed(bars, trace, Path(options.model), options.scale)
    bars.finish()


if __name__ == "__main__":
    main()
