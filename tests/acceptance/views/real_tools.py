"""Our views print what the real tools print. Needs ``make peers``.

vLLM bench, AIPerf and GuideLLM run against the truth server. Our view of the server's own record of the same answers,
decoded like our own records, must agree with the tools' figures within 1 %, which is the tools' own error. Our view of
the tools' own timestamps must give the same numbers. Last, a run is exported to each tool's format, and the tool's own
reader reads it.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

import msgspec

from bakeoff.engines.dialects import OpenAiDialect
from bakeoff.harness.client import decode_stream
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.harness.truth.record import stream_records
from bakeoff.results.records import Load as Level
from bakeoff.results.records import RequestRecord
from bakeoff.results.views import VIEWS, Figure, Log, MetricFamily
from benchmarks.bars import Bars, model_argument
from benchmarks.peers.install import install, is_installed
from benchmarks.peers.protocol import Endpoint, Load
from tests.acceptance.real.readers import exports_are_whole
from tests.acceptance.real.tools import TOOLS, key_paths

CONCURRENCY, REQUESTS, TOKENS = 4, 24, 32
MAX_APART_PCT = 1.0
_NOISE = ("std", "min", "max")
"""Statistics that the tools' own error dominates: they are compared by the tools' own timestamps only."""


_RATES = (MetricFamily.REQUEST_RATE, MetricFamily.OUTPUT_RATE)
_UNSTAMPED = {"vllm": (MetricFamily.DURATION, *_RATES), "aiperf": _RATES}
"""Families that depend on the start and end of a whole run, which these tools' files do not hold."""


class Case(msgspec.Struct, frozen=True):
    """One way in which a server answers."""

    endpoint: Endpoint
    schedule: Schedule


_PACE = Schedule(ttft_s=0.8, itl_s=0.04, jitter="exponential", finish_chunk=False)
"""Slow enough that a tool's own delays are small in comparison."""
CASES: dict[str, Case] = {
    "completions": Case("completions", _PACE),
    "chat": Case("chat", msgspec.structs.replace(_PACE, role_chunk="with_first", finish_chunk=True)),
    "4 tokens a chunk": Case("completions", msgspec.structs.replace(_PACE, tokens_per_chunk=4, finish_chunk=True)),
}


class Outcome(msgspec.Struct, frozen=True):
    """One run of one tool.

    Attributes:
        tool: name of the view.
        case: name of the case.
        true: the server's record, decoded.
        stamped: the same requests by the tool's clock.
        printed: the figures that the tool printed.
    """

    tool: str
    case: str
    true: list[RequestRecord]
    stamped: list[RequestRecord]
    printed: dict[str, float]


async def run(name: str, case: str, model: Path, folder: Path) -> Outcome:
    """Run one tool against one truth server."""
    tool, setting = TOOLS[name], CASES[case]
    tokens = TOKENS * setting.schedule.tokens_per_chunk
    async with truth_process(setting.schedule, core=0) as truth:
        load = Load(truth.url, model, REQUESTS, tokens, CONCURRENCY, endpoint=setting.endpoint)
        await asyncio.to_thread(tool.start, load, folder)
        streams = stream_records(await truth.answered(), setting.schedule)
    requests = [decode_stream(stream, OpenAiDialect(), None) for stream in streams]
    # Earlier requests are the tool's warm-up.
    true = sorted(requests, key=lambda request: request.planned_ns)[-REQUESTS:]
    return Outcome(name, case, true, tool.stamped(folder), tool.printed(folder))


def figures_of(tool: str, requests: list[RequestRecord]) -> dict[str, Figure]:
    """The figures that our view gives for ``requests``."""
    start_ns = min(request.planned_ns for request in requests)
    return VIEWS[tool].view(Log(requests, start_ns, Level(concurrency=CONCURRENCY))).figures


def differences(outcome: Outcome) -> dict[str, tuple[float, float, float]]:
    """Figure → the tool's value, our view's value from the server's record, and their difference in per cent."""
    view = figures_of(outcome.tool, outcome.true)
    compared = {
        name: view[name].value.value or 0.0
        for name in outcome.printed
        if view[name].stat not in _NOISE and view[name].family is not MetricFamily.OTHER
    }
    return {
        name: (printed := outcome.printed[name], value, _apart_pct(printed, value)) for name, value in compared.items()
    }


def own_stamps(outcome: Outcome) -> dict[str, float]:
    """Figure → difference in per cent between the tool's value and our view's value from its own timestamps."""
    view = figures_of(outcome.tool, outcome.stamped)
    unstamped = _UNSTAMPED.get(outcome.tool, ())
    return {
        name: _apart_pct(printed, view[name].value.value or 0.0)
        for name, printed in outcome.printed.items()
        if view[name].family not in unstamped
    }


def _apart_pct(printed: float, viewed: float) -> float:
    return 100 * abs(printed - viewed) / abs(viewed) if viewed else 100 * abs(printed)


def _table(outcome: Outcome, apart: dict[str, tuple[float, float, float]]) -> None:
    print(f"\n{VIEWS[outcome.tool].title}, {outcome.case}: {len(outcome.true)} requests")
    width = max(map(len, apart))
    print(f"  {'figure':<{width}} {'the tool':>12} {'our view':>12} {'apart':>9}")
    for name, (printed, viewed, pct) in apart.items():
        print(f"  {name:<{width}} {printed:>12.4f} {viewed:>12.4f} {pct:>7.3f} %")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--tools", nargs="+", choices=[*TOOLS], default=[*TOOLS])
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--rounds", type=int, default=3, help="the median difference of each figure counts")
    parser.add_argument("--fixtures", type=Path, help="folder to write fixtures of the tests to")
    parser.add_argument("--keep", type=Path, help="keep the tools' own files here")
    return parser.parse_args()


def main() -> None:
    options = _options()
    for name in options.tools:
        if not is_installed(name):
            install(name)
    bars = Bars()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="bakeoff-views-"))
    for tool in options.tools:
        worst, exact = 0.0, 0.0
        for case in options.cases:
            case_folder = folder / tool / case.replace(" ", "-")
            outcomes = [
                asyncio.run(run(tool, case, Path(options.model), case_folder / str(number)))
                for number in range(options.rounds)
            ]
            by_round = [differences(outcome) for outcome in outcomes]
            _table(outcomes[-1], by_round[-1])
            worst = max(worst, *(statistics.median(figures[name][2] for figures in by_round) for name in by_round[0]))
            exact = max(exact, *(pct for outcome in outcomes for pct in own_stamps(outcome).values()))
            if options.fixtures and max(pct for _, _, pct in by_round[-1].values()) <= MAX_APART_PCT:
                write_fixture(options.fixtures, outcomes[-1])
                if tool == "vllm":
                    write_keys(options.fixtures, tool, case_folder / "0")
        bars.add(f"{tool}_apart_pct", worst, "<=", MAX_APART_PCT)
        bars.add(f"{tool}_own_stamps_apart_pct", exact, "<=", 0.001)
    for name, passed in exports_are_whole(folder).items():
        bars.add(name, passed, "==", 1)
    bars.finish()


def write_fixture(folder: Path, outcome: Outcome) -> None:
    """Write an outcome with times counted from the first request and without texts."""
    first_ns = {id(requests): min(r.planned_ns for r in requests) for requests in (outcome.true, outcome.stamped)}
    moved = {
        kind: [_moved(request, -first_ns[id(requests)]) for request in requests]
        for kind, requests in (("true", outcome.true), ("stamped", outcome.stamped))
    }
    path = folder / f"{outcome.tool}-{outcome.case.replace(' ', '-')}.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(outcome, **moved)) + b"\n")


def write_keys(folder: Path, tool: str, place: Path) -> None:
    """Write the keys of the tool's result file, which our export must have."""
    keys = sorted(key_paths(msgspec.json.decode((place / TOOLS[tool].file).read_bytes())))
    (folder / f"{tool}.keys").write_text("\n".join(keys) + "\n", encoding="utf-8")


def _moved(request: RequestRecord, by_ns: int) -> RequestRecord:
    """A request with all times shifted."""
    lists = {name: [t + by_ns for t in getattr(request, name)] for name in ("chunk_ns", "empty_chunk_ns")}
    names = ("planned_ns", "sent_ns", "ended_ns", "first_byte_ns", "usage_ns", "last_event_ns")
    times = {name: None if (t := getattr(request, name)) is None else t + by_ns for name in names}
    return msgspec.structs.replace(request, **lists, **times, text="")


if __name__ == "__main__":
    main()
