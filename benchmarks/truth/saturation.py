"""What the findings on capacity say of servers whose capacity is known, in virtual time.

    python -m benchmarks.truth.saturation [--trials 100]

Run by ``make bench-truth``. Default trials of 30 or 60 s, unless said, in six groups:

- *unlimited*: a server that cannot saturate, under bursts, silences and drifts of the arrivals. Three times as many
  trials; none may be called saturated.
- *above*: 110 % of the capacity of queues and of a batching server. Hardly any trial may pass without a finding.
- *overload*: 120 % of the capacity, 1,000 arrivals. Hardly any trial may be called anything but saturated.
- *near*: 95 % of the capacity, 1,000 arrivals. Hardly any trial may be called saturated.
- *half*: 50 % of the capacity. Hardly any trial may have a finding.
- *drains*: bursts beyond the capacity that the server works off in each cycle. All trials are VALID, with latencies.
"""

import argparse
import itertools
import math
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.virtual import Batched, Exponential, Fixed, Lognormal, VirtualEngine, Whole
from bakeoff.harness.virtual.runs import virtual_experiment, virtual_run
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Verdict
from benchmarks.bars import Bars

ON_CAPACITY = {FindingCode.SATURATED, FindingCode.CAPACITY_UNCLEAR, FindingCode.BACKLOG_GREW}


class Case(msgspec.Struct, frozen=True):
    """A load on a server.

    Attributes:
        group: as in the module's text.
        name: of the case.
        load: as in an experiment file.
        engine: the server.
        duration_s: of the window.
        tokens: of each answer.
    """

    group: str
    name: str
    load: dict[str, Any]
    engine: VirtualEngine
    duration_s: float = 30.0
    tokens: int = 5


def unlimited() -> list[Case]:
    """E2E with this median and a sigma of 1."""
    arrivals: dict[str, dict[str, Any]] = {
        "gamma CV 2": {"rate_per_s": 3.0, "arrival": "gamma", "arrival_options": {"burstiness": 1 / 4}},
        "gamma CV 4": {"rate_per_s": 3.0, "arrival": "gamma", "arrival_options": {"burstiness": 1 / 16}},
        "code completion's bursts": {"rate_per_s": 2.567, "arrival": "onoff"},
        "chat's drift": {"rate_per_s": 5.53, "arrival": "drift"},
    }
    return [
        Case("unlimited", f"{name}, E2E {e2e_s:g} s, {duration_s:g} s", load,
             VirtualEngine(service=Whole(Lognormal(e2e_s * math.exp(0.5), math.sqrt(math.e - 1)))), duration_s)
        for (name, load), e2e_s, duration_s in itertools.product(arrivals.items(), (0.1, 1.0, 4.0, 8.0), (30.0, 60.0))
    ]  # fmt: skip


BATCH = Batched(step_s=0.02, row_s=0.002, prompt_token_s=0.0005)
BATCH_SLOTS, BATCH_TOKENS, PROMPT_TOKENS = 32, 40, 8


def batch_capacity() -> float:
    """Answers per second of the batching server with all rows in use: each step has 32/40 of an answer's prompt."""
    started = BATCH_SLOTS / BATCH_TOKENS
    step_s = BATCH.step_s + BATCH_SLOTS * BATCH.row_s + started * PROMPT_TOKENS * BATCH.prompt_token_s
    return started / step_s


def at(group: str, share: float, arrivals: int | None = None) -> list[Case]:
    """Servers at a share of their capacity, for 30 s or so many arrivals."""
    servers: dict[str, tuple[float, VirtualEngine, int]] = {
        "M/M/1": (2.5, VirtualEngine(service=Whole(Exponential(0.4)), slots=1), 5),
        "M/D/4": (4.0, VirtualEngine(service=Whole(Fixed(1.0)), slots=4), 5),
        "M/M/4": (4.0, VirtualEngine(service=Whole(Exponential(1.0)), slots=4), 5),
        "M/D/16, 4 s": (4.0, VirtualEngine(service=Whole(Fixed(4.0)), slots=16), 5),
        "M/M/8": (8.0, VirtualEngine(service=Whole(Exponential(1.0)), slots=8), 5),
        "batching": (batch_capacity(), VirtualEngine(service=BATCH, slots=BATCH_SLOTS), BATCH_TOKENS),
    }
    return [
        Case(
            group,
            f"{name} at {share:.0%}",
            {"rate_per_s": share * capacity, "arrival": "poisson"},
            engine,
            30.0 if arrivals is None else arrivals / (share * capacity),
            tokens,
        )
        for name, (capacity, engine, tokens) in servers.items()
    ]


def drains() -> list[Case]:
    """20 requests/s for 10 s, then silence for 20 s, on eight slots of 1 s: each cycle's 200 requests take 25 s."""
    lengths = {name: {"family": "uniform", "low": s, "high": s + 0.01} for name, s in (("on_s", 10.0), ("off_s", 20.0))}
    options = {**lengths, "spread": 0.0, "burstiness": 1.0}
    load = {"rate_per_s": 20 / 3, "arrival": "onoff", "arrival_options": options}
    return [Case("drains", "on/off", load, VirtualEngine(service=Whole(Fixed(1.0)), slots=8), 90.0)]


def measured(job: tuple[Case, int]) -> tuple[set[FindingCode], bool]:
    """The trial's findings on capacity, and whether it is VALID with its latencies."""
    case, seed = job
    experiment = virtual_experiment(
        ["engine"], [case.load], repeats=1, seed=seed, trial={"duration_s": case.duration_s},
        workload={"name": "random", "options": {"input_tokens": PROMPT_TOKENS, "output_tokens": case.tokens}},
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bakeoff-saturation-", dir="/dev/shm") as name:
        (trial,) = virtual_run(experiment, {"engine": case.engine}, Path(name), seed=seed).finished
    is_shown = trial.record.verdict is Verdict.VALID and trial.metrics["ttft_p50_s"].value is not None
    return {finding.code for finding in trial.record.findings} & ON_CAPACITY, is_shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="of each group, at least (default: %(default)s)")
    options = parser.parse_args()
    bars = Bars()
    found: dict[str, list[tuple[set[FindingCode], bool]]] = {}
    cases = [*unlimited(), *at("above", 1.1), *at("half", 0.5), *drains()]
    cases += [*at("overload", 1.2, 1000), *at("near", 0.95, 1000)]
    sizes = Counter(case.group for case in cases)
    print(f"{'group':<10} {'none':>5} {'unclear':>8} {'grew':>5} {'saturated':>10}  case")
    with ProcessPoolExecutor() as pool:
        for case in cases:
            wanted = options.trials * (3 if case.group == "unlimited" else 1)
            trials = math.ceil(wanted / sizes[case.group])
            rows = list(pool.map(measured, [(case, seed) for seed in range(trials)]))
            found.setdefault(case.group, []).extend(rows)
            shares = [
                sum(not codes for codes, _ in rows),
                *(sum(code in codes for codes, _ in rows)
                  for code in (FindingCode.CAPACITY_UNCLEAR, FindingCode.BACKLOG_GREW, FindingCode.SATURATED)),
            ]  # fmt: skip
            texts = [f"{count / len(rows):.0%}" for count in shares]
            print(f"{case.group:<10} {texts[0]:>5} {texts[1]:>8} {texts[2]:>5} {texts[3]:>10}  {case.name}", flush=True)

    def share(group: str, *codes: FindingCode) -> float:
        return sum(bool(seen & set(codes)) for seen, _ in found[group]) / len(found[group])

    bars.add("unlimited_called_saturated", share("unlimited", FindingCode.SATURATED), "==", 0)
    bars.add("above_without_a_finding", 1 - share("above", *ON_CAPACITY), "<=", 0.02)
    bars.add("overload_not_called_saturated", 1 - share("overload", FindingCode.SATURATED), "<=", 0.02)
    bars.add("near_called_saturated", share("near", FindingCode.SATURATED), "<=", 0.02)
    bars.add("half_with_a_finding", share("half", *ON_CAPACITY), "<=", 0.02)
    shown = sum(is_shown for _, is_shown in found["drains"])
    bars.add("drains_invalid_or_without_latencies", 1 - shown / len(found["drains"]), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
