"""The same agent sessions replayed by AIPerf 0.13.0 and by Bakeoff, request by request.

    python -m benchmarks.peers.install aiperf
    python -m benchmarks.agents.aiperf [--rounds 2] [--seed 3]

Writes sessions in the AgentX dialect, lets both clients replay them in turns against a server that answers in the
recorded time, and compares prompts, answers and gaps. A gap lasts from the last end of the answers that a call waits
for in the recording until its request arrives. Every session has a lane of its own and begins with its first call.

AIPerf reads the file differently in three places. The recording says that a pause lasts from the end of an answer to
the next request, so Bakeoff keeps it there, too:

- A sub-agent starts at the answer of the call that launched it, without the recorded pause: its offset counts from the
  first sub-agent of the same launch and join, not from that answer. One that started during a call keeps its time.
- A main agent that waits for sub-agents goes on at the end of the last one without the recorded pause: a join that
  blocks has no delay. If they end before the main agent's own answer, the pause counts from that answer.
- A prompt is text of 64 tokens a block, but encoded again it has a few tokens more or fewer, since tokens merge across
  blocks. What two prompts share then seldom ends with a block of 64, so that a cache of such blocks hits one block less
  in some prompts. Counted in single tokens, the clients' prompts share as much. AIPerf's own metric counts the hits of
  the recorded ids.

So gaps are compared where a call waits for its own agent; at launches and joins, Bakeoff's are compared with the
recording. AIPerf sends each request some milliseconds after the pause, which is time of its processes and not another
reading: the bar allows its median lateness beyond the difference between two of its runs.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.agents.playing import clients
from benchmarks.agents.playing.prompts import Prompts
from benchmarks.agents.playing.recording import Kind, Session, sessions, write
from benchmarks.agents.playing.replay import Place, Replay
from benchmarks.agents.playing.server import RecordingServer
from benchmarks.bars import Bars, model_argument
from benchmarks.peers.install import is_installed
from benchmarks.peers.tables import aligned

AIPERF, BAKEOFF = "AIPerf", "Bakeoff"
SESSIONS = 6
Gaps = dict[Place, float]
"""Seconds before each call, of one run or of the recording."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each client, at least 2")
    parser.add_argument("--seed", type=int, default=3, help="of the recording")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("two runs of a client are compared; give --rounds 2 or more")
    if not is_installed("aiperf"):
        sys.exit("AIPerf is not installed; run python -m benchmarks.peers.install aiperf")
    recorded = sessions(SESSIONS, options.seed)
    with tempfile.TemporaryDirectory() as name:
        runs = replays(recorded, Path(name), Path(options.model), options.rounds)
    print(f"{SESSIONS} sessions, {sum(len(session.calls) for session in recorded)} calls, {options.rounds} rounds\n")
    bars = Bars()
    compare_calls(bars, runs)
    compare_prompts(bars, runs, Path(options.model))
    compare_gaps(bars, runs, recorded)
    bars.finish()


def replays(recorded: list[Session], folder: Path, model: Path, rounds: int) -> dict[str, list[Replay]]:
    """Let the clients take turns; returns the runs of each."""
    server = RecordingServer()
    write(recorded, folder)
    duration_s = 5 + 1.05 * max(call.end_s for session in recorded for call in session.calls)

    def played(play: Callable[[], None]) -> Replay:
        play()
        asked, server.asked = server.asked, []
        return Replay(recorded, asked)

    runs: dict[str, list[Replay]] = {AIPERF: [], BAKEOFF: []}
    for _ in range(rounds):
        runs[AIPERF].append(played(lambda: clients.aiperf(folder, server.url, model, SESSIONS, duration_s)))
        runs[BAKEOFF].append(played(lambda: clients.bakeoff(folder, server.url, model, SESSIONS)))
    return runs


def compare_calls(bars: Bars, runs: dict[str, list[Replay]]) -> None:
    """Whether each call was sent, with its length of answer, and after those that it waits for.

    A conversation is recognised by the lengths of all its answers, so one wrong length is a conversation missing.
    """
    for client, replays_ in runs.items():
        missing = max(replay.missing for replay in replays_)
        early = max(sum(gap_s < 0 for gap_s in replay.gaps_s().values()) for replay in replays_)
        print(f"{client}: {missing} calls not sent or with another length of answer, {early} before one they wait for")
        bars.add(f"calls_missing_{client.lower()}", missing, "==", 0)
        bars.add(f"calls_too_early_{client.lower()}", early, "==", 0)


def compare_prompts(bars: Bars, runs: dict[str, list[Replay]], model: Path) -> None:
    """Lengths and cache hits of the prompts as sent."""
    prompts = {client: Prompts(replays_[0], model) for client, replays_ in runs.items()}
    rows = [["prompts", "tokens", "of another length", "differ by", "64-token hits", "recorded", "1-token hits"]]
    for client, own in prompts.items():
        longer = own.longer()
        rows.append(
            [
                client, str(sum(map(len, own.ids.values()))), str(sum(map(bool, longer.values()))),
                f"{min(longer.values())} to {max(longer.values())}", f"{own.hit_share():.3%}",
                f"{own.recorded_hit_share():.3%}", f"{own.hit_share(1):.3%}",
            ]
        )  # fmt: skip
    added = prompts[AIPERF].templated()
    print(f"\n{aligned(rows)}\nThe chat template adds {min(added)} to {max(added)} tokens to AIPerf's messages.\n")
    ours, theirs = prompts[BAKEOFF], prompts[AIPERF]
    apart = [abs(len(ids) - len(theirs.ids[place])) for place, ids in ours.ids.items() if place in theirs.ids]
    bars.add("prompts_of_another_length_bakeoff", sum(map(bool, ours.longer().values())), "==", 0)
    bars.add("prompt_tokens_apart_percent", 100 * sum(apart) / sum(map(len, ours.ids.values())), "<=", 0.5)
    bars.add("block_hits_from_recording_points", _points(ours.hit_share(), ours.recorded_hit_share()), "<=", 0.1)
    bars.add("token_hits_apart_points", _points(ours.hit_share(1), theirs.hit_share(1)), "<=", 0.1)


def compare_gaps(bars: Bars, runs: dict[str, list[Replay]], recorded: Sequence[Session]) -> None:
    """Gaps of the clients beside each other and beside the recording."""
    calls = {(number, at): call for number, session in enumerate(recorded) for at, call in enumerate(session.calls)}
    pauses_s = {place: call.pause_s for place, call in calls.items()}
    gaps = {client: [replay.gaps_s() for replay in replays_] for client, replays_ in runs.items()}
    ours, theirs = gaps[BAKEOFF], gaps[AIPERF]
    pairs = {
        "AIPerf, AIPerf": list(itertools.combinations(theirs, 2)),
        "Bakeoff, Bakeoff": list(itertools.combinations(ours, 2)),
        "Bakeoff, AIPerf": list(itertools.product(ours, theirs)),
        "AIPerf, recorded": [(run, pauses_s) for run in theirs],
        "Bakeoff, recorded": [(run, pauses_s) for run in ours],
    }
    rows = [["difference of gaps, ms: p50 / p90", *pairs]]
    p50_ms: dict[tuple[Kind, str], float] = {}
    for kind in (Kind.NEXT, Kind.LAUNCH, Kind.JOIN):
        places = [place for place, call in calls.items() if call.kind is kind]
        cells: list[str] = []
        for name, compared in pairs.items():
            apart_ms = [1000 * abs(gap_s) for one, other in compared for gap_s in _differences(one, other, places)]
            p50_ms[kind, name] = statistics.median(apart_ms)
            cells.append(f"{p50_ms[kind, name]:.2f} / {statistics.quantiles(apart_ms, n=10)[-1]:.2f}")
        rows.append([f"{kind} ({len(places)} calls)", *cells])
    following = [place for place, call in calls.items() if call.kind is Kind.NEXT]
    late_ms = 1000 * statistics.median(gap_s for run in theirs for gap_s in _differences(run, pauses_s, following))
    print(f"{aligned(rows)}\nAIPerf's median lateness at `{Kind.NEXT}`: {late_ms:.2f} ms after the recorded pause.\n")
    own_ms = p50_ms[Kind.NEXT, "AIPerf, AIPerf"]
    bars.add("gap_apart_p50_ms", p50_ms[Kind.NEXT, "Bakeoff, AIPerf"], "<=", own_ms + max(0.0, late_ms))
    for kind in (Kind.NEXT, Kind.LAUNCH, Kind.JOIN):
        bars.add(f"gap_from_recording_p50_ms_{kind}", p50_ms[kind, "Bakeoff, recorded"], "<=", own_ms)
    bars.add("gap_from_recording_worst_ms", 1000 * worst_s(ours, pauses_s), "<=", 20)


def worst_s(runs: Sequence[Gaps], pauses_s: Gaps) -> float:
    """The largest difference from the recording that a call has in every run: the machine delays others in each."""
    return max(min(abs(run[place] - pauses_s[place]) for run in runs if place in run) for place in runs[0])


def _differences(one: Gaps, other: Gaps, places: Iterable[Place]) -> list[float]:
    return [one[place] - other[place] for place in places if place in one and place in other]


def _points(one: float, other: float) -> float:
    return 100 * abs(one - other)


if __name__ == "__main__":
    main()
